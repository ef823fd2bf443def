"""Output channels of a linear layer or a convolution that are computed, and that no output depends on."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import comparable_pass, watched_pass
from nsa_doctor.checks._shared.without_effect import NUM_SHUFFLED, shuffled
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import parameter_place
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

_WEIGHTED = (nn.Linear, nn.Conv1d)
_FEWEST = 2  # channels
_LENGTHS, _LONGER, _ROWS = (67, 131, 260), 1100, 2
_FAR = 30.0


@dataclass(frozen=True)
class Unread:
    """The layer, which of its `of` output channels are not read, and the line that computes them."""

    path: str
    channels: tuple[int, ...]
    of: int
    place: Place


def unread_channels(subject: Subject) -> list[Unread]:
    """Of every layer some of whose channels are read: those with no gradient and no effect, whatever the weights."""
    left = {path: torch.ones(len(layer.weight), dtype=torch.bool) for path, layer in _layers(built(subject).module)}
    for sp, length in _passes(subject):
        comparable_pass(sp, sp.input(length, _ROWS, seed=subject.seed + length))
        layers = dict(_layers(sp.module))
        left = {path: dead & _without_gradient(layers[path]) for path, dead in left.items() if path in layers}
        left = {path: dead for path, dead in left.items() if int(dead.sum()) >= _FEWEST and not bool(dead.all())}
        if not left:
            return []
    left = {
        path: dead
        for path, dead in left.items()
        if not (_is_cut_off(subject, path, dead) or _changes(subject, path, dead))
    }
    return list(_placed(subject, left)) if left else []


def _layers(root: nn.Module) -> Iterator[tuple[str, nn.Linear | nn.Conv1d]]:
    """Those that are trained; what shares its weight with another is that other's."""
    owners: dict[int, int] = {}
    for part in root.modules():
        for parameter in part.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for path, part in root.named_modules():
        if type(part) in _WEIGHTED and part.weight.requires_grad and owners.get(id(part.weight)) == 1:
            yield path, part


def _weight(sp: BuiltModule, path: str) -> nn.Parameter:
    return dict(sp.module.named_parameters())[f"{path}.weight".removeprefix(".")]


def _passes(subject: Subject) -> Iterator[tuple[BuiltModule, int]]:
    """Weights as they are built and in other orders, so that what a threshold shuts once is open another time."""
    lengths = dict.fromkeys(min(length, subject.max_length) for length in _LENGTHS)
    for length in list(lengths)[: 1 if subject.is_slow else None]:
        yield built(subject, mode="train"), length
        for index in range(NUM_SHUFFLED):
            yield shuffled(built(subject, mode="train"), index), length


def _without_gradient(layer: nn.Linear | nn.Conv1d) -> Tensor:
    """Of each channel whether its weights and its bias have a gradient of zeros; of none where there is no gradient."""
    if layer.weight.grad is None:
        return torch.zeros(len(layer.weight), dtype=torch.bool)
    dead = ~(layer.weight.grad != 0).flatten(1).any(1)
    if layer.bias is not None and layer.bias.grad is not None:
        dead &= layer.bias.grad == 0
    return dead.cpu()


def _is_cut_off(subject: Subject, path: str, dead: Tensor) -> bool:
    """Whether the others are the output as they are: of logits some may be cut off, or overwritten.

    The last ones round a vocabulary up, and the first ones may stand for no text.
    """
    sp = built(subject)
    made: list[Tensor] = []
    handle = sp.module.get_submodule(path).register_forward_hook(lambda _layer, _given, output: made.append(output))
    try:
        with torch.no_grad():
            logits = sp(sp.input(2))
    finally:
        handle.remove()
    rest = [each[..., ~dead.to(each.device)] for each in made if each.shape[-1] == len(dead)]
    own = logits[..., ~dead.to(logits.device)] if logits.shape[-1] == len(dead) else logits
    return any(each.shape == own.shape and torch.equal(each.to(own.dtype), own) for each in rest)


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
            with torch.no_grad():
                plain, held = sp(x), weight.detach().clone()
                for sign in (1, -1):
                    weight[rows] = sign * _FAR * held[rows]
                    if not torch.equal(sp(x), plain):
                        return True
                    weight.copy_(held)
    return False


def _placed(subject: Subject, left: dict[str, Tensor]) -> Iterator[Unread]:
    sp = built(subject, mode="train")
    _, watch = watched_pass(sp, sp.input(min(_LENGTHS[0], subject.max_length)), [])
    for path, dead in left.items():
        place = parameter_place(watch.place_of(_weight(sp, path)), sp.module, f"{path}.weight".removeprefix("."))
        yield Unread(path, tuple(dead.nonzero().flatten().tolist()), len(dead), place)
