"""What a module's own forward returns beside what a subject hands on: an adapter may leave some of it out."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.fed_by_defaults import fed_by_defaults
from nsa_doctor.checks._shared.unlearned import lengths_for, listed
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Note
from nsa_doctor.probes.behaviour.loss_calls import Batch, moved_by_losses
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.tensors.answer import floating_parts
from nsa_doctor.subject.contract import Subject

_ROUNDINGS = 1e3
_LONG = 64


def moved_beside(subject: Subject, names: Sequence[str]) -> dict[str, str]:
    """Of parameters that move nothing that is handed on, those that move another part of what the module returns, or
    what one of its parts returns behind its first answer, as a memory or a state is.

    By name, with the way to that part: `[1][0]`. None where the call goes another way than through its forward.
    """
    sp = built(subject, mode="train")
    returned = attempt(lambda: _returned(sp))
    if isinstance(returned, Caught):
        return {}
    parameters = dict(sp.module.named_parameters())
    trained = [parameter for parameter in parameters.values() if parameter.requires_grad]
    found: dict[str, str] = {}
    for path, part in returned:
        product = (part * make_cotangent(part, subject.seed)).sum()
        gradients = torch.autograd.grad(product, trained, retain_graph=True, allow_unused=True)
        sizes = {
            id(parameter): float(gradient.to_dense().abs().max())
            for parameter, gradient in zip(trained, gradients, strict=True)
            if gradient is not None and gradient.numel()
        }
        rounding = _ROUNDINGS * torch.finfo(part.dtype).eps * max(sizes.values(), default=0.0)
        found |= {name: path for name in names if name not in found and sizes.get(id(parameters[name]), 0.0) > rounding}
    return found


def moved_elsewhere(subject: Subject, names: Sequence[str]) -> tuple[dict[str, str], list[Note]]:
    """The same, those that a loss by a method of the module moves, and those whose part gets nothing but defaults.

    With a note of each kind.
    """
    beside = moved_beside(subject, names)
    sp = built(subject, mode="train")
    notes = []
    if beside:
        part = f" ({way})" if (way := next(iter(beside.values()))) else ""
        words = f"learnt by a part of what forward returns{part} alone, which is not handed on"
        notes.append(Note(message=f"{listed(list(beside))} {words}", where=definition_place(sp.module)))
    rest = [name for name in names if name not in beside]
    trained = attempt(lambda: _moved_by_losses(sp, rest)) if rest else {}
    if isinstance(trained, dict) and trained:
        words = f"learnt by the loss of {next(iter(trained.values()))} alone"
        notes.append(Note(message=f"{listed(list(trained))} {words}", where=definition_place(sp.module)))
        beside = {**beside, **trained}
    rest = [name for name in rest if name not in beside]
    fed, left_out = fed_by_defaults(subject, rest) if rest else ([], [])
    if fed:
        words = (
            f"without effect where forward is not given {', '.join(left_out)}: their parts get one vector everywhere"
        )
        notes.append(Note(message=f"{listed(fed)} {words}", where=definition_place(sp.module)))
    return beside | dict.fromkeys(fed, ""), notes


def _moved_by_losses(sp: BuiltModule, names: Sequence[str]) -> dict[str, str]:
    x = sp.input(min(_LONG, sp.subject.max_length), batch=2)
    batch = Batch(x=x, lengths=torch.full(x.shape[:1], x.shape[1], device=x.device))
    with unobserved(), torch.enable_grad():
        return moved_by_losses(sp, batch, names)


def _returned(sp: BuiltModule) -> list[tuple[str, Tensor]]:
    """The parts with a gradient of what the module's forward returned last in one call, and behind the first of each of
    its parts.
    """
    root: list[Any] = []
    behind: dict[str, Tensor] = {}

    def hear(path: str) -> Callable[[nn.Module, object, object], None]:
        def see(_module: nn.Module, _given: object, answer: object) -> None:
            if path:
                more = list(floating_parts(answer).items())[1:]
                behind.update({f"{path}{way}": part for way, part in more})
            else:
                root.append(answer)

        return see

    handles = [each.register_forward_hook(hear(path)) for path, each in sp.module.named_modules()]
    try:
        with torch.enable_grad():
            sp(sp.input(lengths_for(sp.subject)[-1], batch=2))
    finally:
        for handle in handles:
            handle.remove()
    parts = (floating_parts(root[-1]) if root else {}) | behind
    return [(path, part) for path, part in parts.items() if part.requires_grad and not part.is_complex()]
