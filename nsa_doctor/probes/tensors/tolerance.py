"""How far a result may be from the truth: derived from what plain torch achieves, never tuned by hand."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Deviation:
    """How far one tensor is from the truth, and how far it may be; both are largest absolute differences."""

    error: float
    bound: float

    @property
    def is_within(self) -> bool:
        """False for an error that is NaN, too."""
        return self.error <= self.bound


def deviation(result: Tensor, plain: Tensor, truth: Tensor, *, num_terms: int, scale: float | None = None) -> Deviation:
    """Compare `result` with the float64 `truth`; `plain` is plain torch's answer in the dtype of `result`.

    The bound is twice plain torch's own error, plus what taking the same sums in another order can cost: one unit in
    the last place at `scale`, and √num_terms units of the dtype sums are kept in (float32 for half precision).
    `num_terms` is the length of the longest sum; `scale` the largest true value, or that of terms that cancel, as they
    do in the gradient of a softmax over one key.
    """
    scale = largest(truth) if scale is None else scale
    sums = torch.promote_types(result.dtype, torch.float32)
    rounding = (torch.finfo(result.dtype).eps + math.sqrt(num_terms) * torch.finfo(sums).eps) * scale
    return Deviation(error=_distance(result, truth), bound=2 * _distance(plain, truth) + rounding)


def largest(x: Tensor) -> float:
    """Largest magnitude, 0 for an empty tensor; NaN where any element is, unlike Python's max."""
    return float(x.detach().abs().max()) if x.numel() else 0.0


def _distance(result: Tensor, truth: Tensor) -> float:
    if result.shape != truth.shape:
        raise ValueError(f"result must have the shape of the truth, {list(truth.shape)}, got {list(result.shape)}")
    return largest(result.detach().double().cpu() - truth.detach().double().cpu())
