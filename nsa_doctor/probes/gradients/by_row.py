"""Whether the gradient of a batch is the sum of the gradients of its rows alone, as no row may know of another."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, require_finite
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.probes.tensors.finite import isfinite

_ROUNDINGS = 64.0  # what adding up the same terms in another order costs,
_OF_MANY = 4.0  # or so many times the root of their number: those that are equal are all rounded one way
_SAFETY = 8.0
_MOST_DRAWS = 4  # of roundings: a gradient that hangs on few of them may move little by one draw
_LENGTH_FOR_PRECISION = 17
_INPUT = "the input"

Gradients = Mapping[str, Tensor]


@dataclass(frozen=True)
class RowDeparture:
    """A gradient of a batch that is not the sum over its rows, and how far it may be from it."""

    name: str
    batch: int
    error: float
    bound: float


def first_departure(sp: BuiltModule, length: int, batches: Sequence[int]) -> RowDeparture | None:
    """The first of some growing batches whose gradients are not the sums over its rows, beyond rounding.

    Raises NotComparableError where a gradient is not finite.
    """
    x = sp.input(length, max(batches))
    with torch.no_grad():
        cotangent = make_cotangent(require_finite(sp(x), length), sp.subject.seed)
    eps = finest_precision(sp, x[:, :_LENGTH_FOR_PRECISION]).eps
    sums: dict[str, Tensor] = {}
    for row in range(max(batches)):
        own = slice(row, row + 1)
        _add(sums, _gradients(sp, x[own], cotangent[own]))
        if row + 1 not in batches:
            continue
        rows = slice(0, row + 1)
        found = _gradients(sp, x[rows], cotangent[rows])
        bound = max(_ROUNDINGS, _OF_MANY * math.sqrt((row + 1) * length)) * eps * _largest(sums)
        if (name := _differing(found, sums, bound)) is None:
            continue
        least = bound
        for draw in range(_MOST_DRAWS):
            bound = max(bound, least + _noise(sp, x[rows], cotangent[rows], found, eps, draw))
            name = _differing(found, sums, bound)
            if name is None:
                break
        if name is not None:
            return RowDeparture(name, row + 1, _error(found, sums, name), bound)
    return None


def _gradients(sp: BuiltModule, x: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
    """Gradients of the output along the cotangent, in float64: of the parameters and, row by row, of the input."""
    sp.module.zero_grad(set_to_none=True)
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    with torch.enable_grad():
        output = sp.call(x.clone())
        if output.requires_grad:
            ask("backward", (output * cotangent).sum().backward, sp.module, output)
    found = {name: _real(p.grad) for name, p in sp.module.named_parameters() if p.grad is not None}
    found |= {} if x.grad is None else {f"{_INPUT}, row {row}": _real(each) for row, each in enumerate(x.grad)}
    for name, gradient in found.items():
        if not bool(isfinite(gradient).all()):
            raise NotComparableError(f"the gradient of {name} is not finite at S={x.shape[1]}, B={x.shape[0]}")
    return found


def _add(sums: dict[str, Tensor], found: Gradients) -> None:
    num_rows = sum(name.startswith(f"{_INPUT}, ") for name in sums)
    for name, gradient in found.items():
        name = f"{_INPUT}, row {num_rows}" if name.startswith(f"{_INPUT}, ") else name
        sums[name] = sums[name] + gradient if name in sums else gradient


def _noise(sp: BuiltModule, x: Tensor, cotangent: Tensor, found: Gradients, eps: float, draw: int) -> float:
    """How far gradients move when every parameter moves by one rounding: far where a hard choice is nearly tied."""
    kept = [(p, p.detach().clone()) for p in sp.module.parameters() if p.is_floating_point()]
    generator = torch.Generator().manual_seed(draw)
    try:
        with torch.no_grad():
            for parameter, value in kept:
                sign = torch.randint(2, value.shape, generator=generator).to(value) * 2 - 1
                parameter.copy_(value * (1 + eps * sign))
        moved = _gradients(sp, x, cotangent)
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)
    return _SAFETY * max((_error(moved, found, name) for name in found), default=0.0)


def _differing(found: Gradients, sums: Gradients, bound: float) -> str | None:
    return next((name for name in {**sums, **found} if not _error(found, sums, name) <= bound), None)


def _error(found: Gradients, sums: Gradients, name: str) -> float:
    zero = torch.zeros(())
    apart = found.get(name, zero) - sums.get(name, zero)
    return float(apart.abs().max()) if apart.numel() else 0.0


def _largest(gradients: Gradients) -> float:
    return max((float(each.abs().max()) for each in gradients.values() if each.numel()), default=0.0)


def _real(gradient: Tensor) -> Tensor:
    dense = gradient.detach().to_dense()
    return torch.view_as_real(dense) if dense.is_complex() else dense.double()
