"""From the doctor's own layout of queries, keys and values, [B, S, H, D], to that of a convention, and back."""

from torch import Tensor

from nsa_doctor.subject.function import Layout


def to_layout(value: Tensor, layout: Layout) -> Tensor:
    """[B, S, H, D] as the layout has it; what has fewer dimensions stays."""
    if value.ndim < 3:
        return value
    if layout == "bhsd":
        return value.transpose(1, 2)
    return value[0] if layout == "shd" else value


def from_layout(value: Tensor, layout: Layout) -> Tensor:
    """Back to [B, S, H, D]."""
    if value.ndim < 3:
        return value
    if layout == "bhsd":
        return value.transpose(1, 2)
    return value[None] if layout == "shd" else value
