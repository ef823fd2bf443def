"""What a module's own forward returns beside what a subject hands on: an adapter may leave some of it out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.tensors.answer import floating_parts
from nsa_doctor.subject.contract import Subject

_ROUNDINGS = 1e3


def moved_beside(subject: Subject, names: Sequence[str]) -> dict[str, str]:
    """Of parameters that move nothing that is handed on, those that move another part of what the module returns.

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


def _returned(sp: BuiltModule) -> list[tuple[str, Tensor]]:
    """The parts with a gradient of what the module's forward returned last in one call."""
    answers: list[Any] = []
    handle = sp.module.register_forward_hook(lambda _module, _args, answer: answers.append(answer))
    try:
        with torch.enable_grad():
            sp(sp.input(lengths_for(sp.subject)[-1], batch=2))
    finally:
        handle.remove()
    parts = floating_parts(answers[-1]) if answers else {}
    return [(path, part) for path, part in parts.items() if part.requires_grad and not part.is_complex()]
