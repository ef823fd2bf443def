"""Counts what is finite in a tensor, and drops nothing in silence."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Census

_WIDE = 1e30
isfinite, isnan, isinf, aminmax = (
    torch.isfinite,
    torch.isnan,
    torch.isinf,
    torch.aminmax,
)  # bound before a subject could replace them


def census(name: str, values: Tensor) -> Census:
    """Count the values of a [B, S, ...] tensor; a row is one token's, the first bad one is named by its position."""
    values = comparable(values.detach())
    bad = ~isfinite(values)
    rows = bad.flatten(2).any(-1) if bad.ndim > 2 else bad
    num_bad = int(rows.sum())
    return Census(
        name=name,
        num_values=values.numel(),
        num_nan=int(isnan(values).sum()),
        num_inf=int(isinf(values).sum()),
        largest=_largest(values),
        num_rows=rows.numel(),
        num_bad_rows=num_bad,
        first_bad=f"token {int(rows.nonzero()[0, -1])}" if num_bad and rows.ndim else "",
    )


def joint_census(name: str, tensors: Mapping[str, Tensor]) -> Census:
    """Count the values of several tensors together; a row is one tensor, the first bad one is named."""
    parts = [census(part, values) for part, values in tensors.items()]
    bad = [part.name for part in parts if not part.is_finite]
    return Census(
        name=name,
        num_values=sum(part.num_values for part in parts),
        num_nan=sum(part.num_nan for part in parts),
        num_inf=sum(part.num_inf for part in parts),
        largest=max((part.largest for part in parts), default=0.0),
        num_rows=len(parts),
        num_bad_rows=len(bad),
        first_bad=bad[0] if bad else "",
    )


def holds_nonfinite(values: Tensor) -> bool:
    """Whether a tensor that can be counted holds NaN or infinity: one pass, no temporary for float32 and float64."""
    if not is_countable(values):
        return False
    values = comparable(values.detach())
    if values.is_complex():
        values = torch.view_as_real(values)
    total = values.sum(dtype=torch.float32 if values.itemsize < 4 else None)
    # Any NaN or infinity makes the sum one; a sum may also overflow by itself, so only then look at every value.
    return not bool(isfinite(total)) and not bool(isfinite(values).all())


def is_extreme(values: Tensor) -> Tensor:
    """Where a value is finite, and its square is beyond the range of its dtype, or so near zero that it is lost.

    Nowhere in float16, in whose narrow range ordinary values are like that.
    """
    limits = torch.finfo(values.dtype)
    size = values.abs()
    if limits.max < _WIDE or values.is_complex():
        return torch.zeros_like(size, dtype=torch.bool)
    return isfinite(values) & ((size > math.sqrt(limits.max)) | ((size > 0) & (size < math.sqrt(limits.tiny))))


def holds_extreme(values: Tensor) -> bool:
    """Whether any value `is_extreme`, of a tensor that can be counted: one look at the ends, as far as they tell."""
    values = comparable(values.detach())
    limits = torch.finfo(values.dtype)
    if limits.max < _WIDE or values.is_complex():
        return False
    size = values.abs()
    smallest, largest = aminmax(size)
    if not bool(isfinite(largest)):
        return bool(is_extreme(values).any())
    if bool(largest > math.sqrt(limits.max)):
        return True
    lost = math.sqrt(limits.tiny)
    return bool(smallest < lost) and bool(((size > 0) & (size < lost)).any())


def is_countable(values: object) -> bool:
    """Whether this is a plain dense tensor of floating or complex numbers, with memory behind it."""
    return (
        isinstance(values, Tensor)
        and values.layout == torch.strided
        and values.device.type != "meta"
        and (values.is_floating_point() or values.is_complex())
        and values.numel() > 0
        and type(values) in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
    )


def comparable(values: Tensor) -> Tensor:
    """The same values in a dtype that comparisons are implemented for."""
    if values.layout != torch.strided:
        values = values.to_dense()
    return values.float() if values.is_floating_point() and values.itemsize < 2 else values


def _largest(values: Tensor) -> float:
    """Largest finite magnitude; 0 where no value is finite, which the counts beside it tell."""
    if not values.numel():
        return 0.0
    magnitude = values.abs()
    return float(torch.where(isfinite(magnitude), magnitude, 0.0).max())
