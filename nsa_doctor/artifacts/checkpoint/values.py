"""The values of a tensor, read in chunks of bounded size, whatever its strides."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsa_doctor.artifacts.checkpoint.contents import Composed, Divided, Quantised, Stored, Tensor
from nsa_doctor.artifacts.checkpoint.dtypes import BYTES, decoded, elements, is_number
from nsa_doctor.artifacts.checkpoint.fault import FaultError, quoted
from nsa_doctor.artifacts.checkpoint.source import Source

CHUNK_BYTES = 2**23


@dataclass(frozen=True)
class Stretch:
    """Numbers that lie side by side in a storage, `count` of them from byte `start` on."""

    storage: Source
    start: int
    count: int
    dtype: str
    is_swapped: bool

    def chunks(self) -> Iterator[NDArray]:
        """The numbers as `elements` gives them."""
        size = BYTES[self.dtype]
        step = max(1, CHUNK_BYTES // size)
        for first in range(0, self.count, step):
            count = min(step, self.count - first)
            yield elements(self.storage.read(self.start + first * size, count * size), self.dtype, self.is_swapped)


def stretches(tensor: Stored) -> Iterator[Stretch]:
    """All values of the tensor, each once or a few times; a repeated or expanded one is not read over and over."""
    if tensor.storage is None or 0 in tensor.shape:
        return
    sides = sorted(
        ((stride, size) for size, stride in zip(tensor.shape, tensor.strides, strict=True) if size > 1 and stride),
        reverse=True,
    )
    yield from _stretches(tensor, tensor.first, sides)


def _stretches(tensor: Stored, first: int, sides: list[tuple[int, int]]) -> Iterator[Stretch]:
    """Along the widest stride until what is left is dense, or overlaps itself: then all from its first to its last."""
    assert tensor.storage is not None
    span = 1 + sum((size - 1) * stride for stride, size in sides)
    if math.prod(size for _, size in sides) >= span:
        size = BYTES[tensor.dtype]
        yield Stretch(tensor.storage, first * size, span, tensor.dtype, tensor.is_swapped)
        return
    (stride, size), *inner = sides
    for index in range(size):
        yield from _stretches(tensor, first + index * stride, inner)


def read_values(tensor: Tensor, most: int) -> NDArray[np.float64]:
    """The tensor as float64; a FaultError where it has more than `most` values, or some that cannot be read."""
    count = math.prod(tensor.shape) if 0 not in tensor.shape else 0
    if count > most:
        raise FaultError("limit", f"it has {count:,} values, and at most {most:,} are read")
    if isinstance(tensor, Composed):
        raise FaultError("unsupported", tensor.unread)
    if isinstance(tensor, Stored):
        return _read(tensor)
    whole = np.full(tensor.shape, np.nan)
    is_there = np.zeros(tensor.shape, dtype=bool)
    for piece in tensor.pieces:
        part = tuple(slice(first, first + size) for first, size in zip(piece.offsets, piece.shape, strict=True))
        whole[part], is_there[part] = _read(piece_of(tensor, piece.open().tensors, piece.shape)), True
    if not is_there.all():
        raise FaultError("incomplete", f"{int((~is_there).sum()):,} of its values are in no file")
    return whole


def piece_of(tensor: Divided, tensors: list[Tensor], shape: tuple[int, ...]) -> Stored:
    """The one tensor that an archive of one piece holds."""
    if len(tensors) != 1 or not isinstance(tensors[0], Stored) or tensors[0].shape != shape:
        raise FaultError("corrupt", f"a piece of {quoted(tensor.name)} is not what the metadata says")
    return tensors[0]


def _read(tensor: Stored) -> NDArray[np.float64]:
    if tensor.unread or tensor.storage is None:
        raise FaultError("unsupported", tensor.unread)
    if not is_number(tensor.dtype):
        raise FaultError("unsupported", f"its dtype {tensor.dtype} is not read as numbers")
    stored = _read_stored(tensor)
    return stored if tensor.quantised is None else _dequantised(stored, tensor.quantised)


def _dequantised(stored: NDArray[np.float64], quantised: Quantised) -> NDArray[np.float64]:
    """What whole numbers stand for."""
    along = [1] * stored.ndim
    along[quantised.axis : quantised.axis + 1] = [-1] * bool(along)
    zeros, scales = (
        _read(part).reshape(along) if isinstance(part, Stored) else part for part in (quantised.zeros, quantised.scales)
    )
    with np.errstate(all="ignore"):
        values: NDArray[np.float64] = (stored - zeros) * scales
    return values


def _read_stored(tensor: Stored) -> NDArray[np.float64]:
    """The numbers as they are stored."""
    assert tensor.storage is not None
    size = BYTES[tensor.dtype]
    if 0 in tensor.shape:
        return np.zeros(tensor.shape)
    span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True))
    if span <= 2 * math.prod(tensor.shape):
        data = elements(tensor.storage.read(tensor.first * size, span * size), tensor.dtype, tensor.is_swapped)
        flat = decoded(data, tensor.dtype)
        steps = tuple(stride * flat.itemsize for stride in tensor.strides)
        return np.array(np.lib.stride_tricks.as_strided(flat, tensor.shape, steps))
    rows = [
        _read_row(tensor, sum(i * s for i, s in zip(index, tensor.strides[:-1], strict=True)))
        for index in np.ndindex(tensor.shape[:-1])
    ]
    return np.concatenate(rows).reshape(tensor.shape)


def _read_row(tensor: Stored, offset: int) -> NDArray[np.float64]:
    """One row along the last dimension, value by value where they lie far apart."""
    assert tensor.storage is not None
    size, stride = BYTES[tensor.dtype], tensor.strides[-1]
    places = [(tensor.first + offset + index * stride) * size for index in range(tensor.shape[-1])]
    if stride == 1:
        data = tensor.storage.read(places[0], len(places) * size)
    else:
        data = b"".join(tensor.storage.read(place, size) for place in places)
    return decoded(elements(data, tensor.dtype, tensor.is_swapped), tensor.dtype)
