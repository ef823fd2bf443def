"""Parameters that start at zero and hold each other's gradient at zero."""

import torch
from torch import nn

from nsa_doctor.probes.mattering import Mattering
from nsa_doctor.probes.specimen import Specimen, specimen
from nsa_doctor.probes.training import forward_backward
from nsa_doctor.subject import Subject

STEPS = 3
_SHARE = 0.01  # of a parameter's size, that its largest element moves in one step
_FROM_ZERO = 0.02


def stuck_at_zero(subject: Subject, length: int) -> tuple[Specimen, list[str]]:
    """The subject as it starts, after some steps, and its parameters that are zero, get a gradient of zero, and would
    get another one were all of them moved off zero. Those of an unused part would not, and are not among them."""
    sp = specimen(subject, mode="train", is_randomised=False)
    stuck = {name: p for name, p in sp.module.named_parameters() if p.requires_grad and p.numel() and _is_zero(p)}
    for step in range(STEPS):
        if not stuck:
            return sp, []
        x = sp.input(length, seed=subject.seed + step)
        forward_backward(sp, x)
        stuck = {name: p for name, p in stuck.items() if p.grad is not None and _is_zero(p.grad)}
        _descend(sp.module)
    stuck = {name: p for name, p in stuck.items() if _is_zero(p)}
    if not stuck:
        return sp, []
    generator = torch.Generator().manual_seed(subject.seed)
    with torch.no_grad():
        for parameter in stuck.values():
            noise = torch.randn(parameter.shape, generator=generator, device="cpu").to(parameter)
            parameter.copy_(_FROM_ZERO * noise)
    x = sp.input(length)
    forward_backward(sp, x)
    freed = [(name, p) for name, p in stuck.items() if p.grad is not None and not _is_zero(p.grad)]
    found = [name for name, _ in Mattering(sp, x).among(freed, len(freed))] if freed else []
    with torch.no_grad():
        for parameter in stuck.values():
            parameter.zero_()
    return sp, found


def _descend(module: nn.Module) -> None:
    """One step down the gradient, each parameter by a share of its own size."""
    with torch.no_grad():
        for parameter in module.parameters():
            gradient = parameter.grad
            if gradient is None or _is_zero(gradient) or not bool(torch.isfinite(gradient).all()):
                continue
            size = float(parameter.abs().max()) or 1.0
            parameter.add_(gradient / gradient.abs().max(), alpha=-_SHARE * size)


def _is_zero(values: torch.Tensor) -> bool:
    return not bool((values != 0).any())
