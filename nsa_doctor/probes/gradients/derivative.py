"""Compares what autograd says of a direction with central differences, and says how far those can be trusted."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from nsa_doctor.probes.tensors.finite import isfinite

# Relative steps. The first is where float64's truncation (step²) and rounding (eps / step) meet; smaller ones avoid
# kinks of relu and hard choices, larger ones outdo the rounding of whatever computes in float32 inside.
_STEPS = {
    torch.float64: (1e-5, 1e-6, 1e-7, 1e-4, 1e-3, 1e-2),
    torch.float32: (1e-2, 3e-3, 1e-3, 3e-2),
}
_TRUST = 4.0  # errors of a central difference that a difference from autograd must exceed
_CLEAN = 1e-3  # an uncertainty that small, relative to the slope, needs no second step size
_USABLE = 0.1  # beyond it, nothing can be said


class Agreement(Enum):
    """What comparing a slope showed; UNKNOWN when the differences themselves cannot be trusted."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Slope:
    """The derivative of a projection of the output along one direction, computed both ways.

    `scale` is what a slope of these variables is like: the root of the sum of squares over the tensors moved.
    """

    autograd: float
    numeric: float
    uncertainty: float
    agreement: Agreement
    scale: float

    @property
    def relative_difference(self) -> float:
        """The difference in units of the larger of the two slopes."""
        largest = max(abs(self.autograd), abs(self.numeric))
        return abs(self.autograd - self.numeric) / largest if largest else 0.0


def has_steps(dtype: torch.dtype) -> bool:
    """Whether central differences say anything in that precision: half precision leaves no room for a step."""
    return dtype in _STEPS


def compare(
    shifted: Callable[[float], Tensor],
    base: Tensor,
    cotangent: Tensor,
    slopes: Sequence[float],
    dtype: torch.dtype,
    backward_rounding: float = 0.0,
) -> Slope:
    """Compare autograd's slopes, one for each tensor moved, with differences of `shifted(step)`, the output moved.

    Rounding, truncation, kinks and jumps change with the step, a wrong derivative does not: they differ when two step
    sizes agree on a value that autograd's is far from.
    """
    autograd, scale = math.fsum(slopes), math.sqrt(math.fsum(slope * slope for slope in slopes))
    eps = torch.finfo(dtype).eps
    measured: list[tuple[float, float]] = []
    for step in _STEPS[dtype]:
        numeric, uncertainty = _central(shifted, base, cotangent, step, eps)
        measured.append((numeric, _TRUST * uncertainty + backward_rounding))
        size = max(scale, abs(numeric))
        if abs(numeric - autograd) <= measured[-1][1] <= _CLEAN * size or size == 0:
            return Slope(autograd, numeric, measured[-1][1], Agreement.AGREES, scale)
        if (pair := _agreeing(measured, autograd)) is not None:
            return Slope(autograd, *pair, Agreement.DIFFERS, scale)
    numeric, uncertainty = min(measured, key=lambda each: each[1])
    agrees = abs(numeric - autograd) <= uncertainty <= _USABLE * max(scale, abs(numeric))
    return Slope(autograd, numeric, uncertainty, Agreement.AGREES if agrees else Agreement.UNKNOWN, scale)


def _agreeing(measured: Sequence[tuple[float, float]], autograd: float) -> tuple[float, float] | None:
    """The last measurement, when it and another step size agree with each other and differ from autograd."""
    numeric, uncertainty = measured[-1]
    gap = abs(numeric - autograd)
    if not (uncertainty < gap):
        return None
    for other, other_uncertainty in measured[:-1]:
        if other_uncertainty < abs(other - autograd) and abs(other - numeric) <= gap / _TRUST:
            return numeric, uncertainty
    return None


def _central(
    shifted: Callable[[float], Tensor], base: Tensor, cotangent: Tensor, step: float, eps: float
) -> tuple[float, float]:
    """The slope by central differences of two widths, and how wrong it may be.

    The widths disagree where the third derivative or a jump counts; the two one-sided slopes of a smooth function
    approach each other as the step shrinks, those at a kink do not.
    """
    wide = [_rise(shifted(sign * step), base, cotangent) for sign in (1, -1)]
    narrow = [_rise(shifted(sign * step / 2), base, cotangent) for sign in (1, -1)]
    by_wide, by_narrow = (wide[0] - wide[1]) / (2 * step), (narrow[0] - narrow[1]) / step
    kink = abs(2 * (narrow[0] + narrow[1]) / (step / 2) - (wide[0] + wide[1]) / step)
    rounding = 8 * eps * float((cotangent * base).norm()) / step
    uncertainty = abs(by_wide - by_narrow) + kink + rounding
    if not math.isfinite(uncertainty):
        return 0.0, math.inf
    return (4 * by_narrow - by_wide) / 3, uncertainty


def _rise(output: Tensor, base: Tensor, cotangent: Tensor) -> float:
    difference = output - base
    return float((cotangent * difference).sum()) if bool(isfinite(difference).all()) else math.nan
