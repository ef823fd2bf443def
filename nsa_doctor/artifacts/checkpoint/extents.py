"""Whether a tensor lies in the bytes that are there for it, and whether there can be one of its shape."""

from nsa_doctor.artifacts.checkpoint.contents import Stored
from nsa_doctor.artifacts.checkpoint.dtypes import BYTES
from nsa_doctor.artifacts.checkpoint.fault import corrupt, quoted
from nsa_doctor.artifacts.checkpoint.limits import LARGEST_SIZE, MOST_DIMENSIONS


def check_extent(tensor: Stored) -> None:
    """Raise a FaultError when a tensor reaches beyond the bytes it lies in, or is larger than any can be."""
    assert tensor.storage is not None
    where = tensor.storage.name
    if len(tensor.shape) > MOST_DIMENSIONS:
        raise corrupt(where, f"{quoted(tensor.name)} has {len(tensor.shape):,} dimensions")
    span = 0 if 0 in tensor.shape else 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    shape = "x".join(str(size) if size <= LARGEST_SIZE else "huge" for size in tensor.shape[:8])
    if span and (tensor.first + span) * BYTES[tensor.dtype] > tensor.storage.num_bytes:
        what = f"{quoted(tensor.name)} of shape {shape} reaches beyond the {tensor.storage.num_bytes:,} bytes"
        raise corrupt(where, f"{what} that are there")
    if max(tensor.strides, default=0) > LARGEST_SIZE or not is_addressable(tensor.shape, BYTES[tensor.dtype]):
        raise corrupt(where, f"{quoted(tensor.name)} of shape {shape} is larger than any tensor can be")


def is_addressable(shape: tuple[int, ...], num_bytes: int) -> bool:
    """Whether a tensor of that shape can be made, its sides of zero left out."""
    size = num_bytes
    for side in shape:
        size *= max(side, 1)
        if size > LARGEST_SIZE:
            return False
    return True
