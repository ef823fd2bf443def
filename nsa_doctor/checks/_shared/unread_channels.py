"""Output channels of a linear layer or a convolution that are computed, and that no output depends on."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.roles import unlike_beside
from nsa_doctor.checks._shared.unlearned import comparable_pass, watched_pass
from nsa_doctor.checks._shared.without_effect import in_other_orders
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import parameter_place
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d)
_FEW = 8  # channels, one of which counts by itself
_FEW_IDS = 2  # as those of a beginning and an end
_LENGTHS, _LONGER, _ROWS = (67, 131, 260), 1100, 2
_FAR = 30.0


_Layer = nn.Linear | nn.Conv1d | nn.Conv2d


@dataclass(frozen=True)
class Unread:
    """The layer, which of its `of` output channels are not read, and the line that computes them.

    `beside` is the like of it in another layer of a list, whose channels are read.
    """

    path: str
    channels: tuple[int, ...]
    of: int
    place: Place
    beside: str = ""

    @property
    def is_meant(self) -> bool:
        """Whether it may well be: where its like is read, and where most are not, of which one is asked for."""
        return bool(self.beside) or 2 * len(self.channels) > self.of


def unread_channels(subject: Subject) -> list[Unread]:
    """Of every layer some of whose channels are read: those with no gradient and no effect, whatever the weights."""
    left = {path: torch.ones(len(layer.weight), dtype=torch.bool) for path, layer in _layers(built(subject).module)}
    for sp, length in in_other_orders(subject, _LENGTHS):
        comparable_pass(sp, sp.input(length, _ROWS, seed=subject.seed + length))
        layers = dict(_layers(sp.module))
        left = {path: dead & _without_gradient(layers[path]) for path, dead in left.items() if path in layers}
        left = {path: dead for path, dead in left.items() if _is_a_part(dead)}
        if not left:
            return []
    left = {path: dead for path, dead in left.items() if not _are_of_no_use(subject, path, dead)}
    left = {path: dead for path, dead in left.items() if not _changes(subject, path, dead)}
    return list(_placed(subject, left)) if left else []


def _is_a_part(dead: Tensor) -> bool:
    """Whether some are, and not all: of many channels more than one, which a threshold may shut by itself."""
    count = int(dead.sum())
    return (1 if len(dead) <= _FEW else 2) <= count < len(dead)


def _layers(root: nn.Module) -> Iterator[tuple[str, _Layer]]:
    """Those that are trained; what shares its weight with another is that other's."""
    owners: dict[int, int] = {}
    for part in root.modules():
        for parameter in part.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for path, part in root.named_modules():
        if isinstance(part, _WEIGHTED) and part.weight.requires_grad and owners.get(id(part.weight)) == 1:
            yield path, part


def _weight(sp: BuiltModule, path: str) -> nn.Parameter:
    return dict(sp.module.named_parameters())[f"{path}.weight".removeprefix(".")]


def _without_gradient(layer: _Layer) -> Tensor:
    """Of each channel whether its weights and its bias have a gradient of zeros; of none where there is no gradient."""
    if layer.weight.grad is None:
        return torch.zeros(len(layer.weight), dtype=torch.bool)
    dead = ~(layer.weight.grad != 0).flatten(1).any(1)
    if layer.bias is not None and layer.bias.grad is not None:
        dead &= layer.bias.grad == 0
    return dead.cpu()


def _are_of_no_use(subject: Subject, path: str, dead: Tensor) -> bool:
    """Whether they are logits, of the layer that is called last, that round a vocabulary up, or a few for nothing.

    They may be cut off, or overwritten.
    """
    sp, order = built(subject), list[str]()
    handles = [
        layer.register_forward_hook(lambda _layer, _given, _output, own=own: order.append(own))
        for own, layer in _layers(sp.module)
    ]
    try:
        with torch.no_grad():
            sp(sp.input(min(_LENGTHS[0], subject.max_length)))
    finally:
        for handle in handles:
            handle.remove()
    alive = (~dead).nonzero().flatten()
    is_one_piece = int(alive[-1] - alive[0]) + 1 == len(alive)
    return order[-1:] == [path] and (is_one_piece or int(dead.sum()) <= _FEW_IDS)


def _changes(subject: Subject, path: str, dead: Tensor) -> bool:
    """Whether other values of these channels, larger or smaller, change an output, in either mode."""
    for mode in subject.modes:
        if mode == "no_grad":
            continue
        for length in dict.fromkeys(min(each, subject.max_length) for each in (*_LENGTHS, _LONGER)):
            if subject.is_slow and length > _LENGTHS[0]:
                break
            sp = built(subject, mode=mode)
            weight = _weight(sp, path)
            x, rows = sp.input(length, _ROWS), dead.to(weight.device)
            with torch.no_grad(), unobserved():
                plain, held = sp(x), weight.detach().clone()
                for sign in (1, -1):
                    weight[rows] = sign * _FAR * held[rows]
                    changed = attempt(lambda sp=sp, x=x: sp(x))
                    if isinstance(changed, Caught) or not torch.equal(changed, plain):
                        return True
                    weight.copy_(held)
    return False


def _placed(subject: Subject, left: dict[str, Tensor]) -> Iterator[Unread]:
    sp = built(subject, mode="train")
    _, watch = watched_pass(sp, sp.input(min(_LENGTHS[0], subject.max_length)), [])
    for path, dead in left.items():
        place = parameter_place(watch.place_of(_weight(sp, path)), sp.module, f"{path}.weight".removeprefix("."))
        name = f"{path}.weight".removeprefix(".")
        beside = unlike_beside(sp.module, name, [f"{other}.weight".removeprefix(".") for other in left])
        channels = tuple(dead.nonzero().flatten().tolist())
        yield Unread(path, channels, len(dead), place, beside.removesuffix(".weight"))
