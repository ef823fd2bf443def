"""Looks at every byte: whether it matches its checksum, and whether every number is finite.

Infinities that are no illness: minus infinity in a mask (where all else is zero, or in a quarter or more of a matrix),
and a tensor of one number, or all of one infinity, as running extremes are before they have seen anything.
"""

import math
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from nsa_doctor.checkpoints.contents import Contents, Stored, Summed, Tensor
from nsa_doctor.checkpoints.dtypes import Unfinite, decoded, is_float, unfinite
from nsa_doctor.checkpoints.fault import FaultError, quoted
from nsa_doctor.checkpoints.limits import Deadline
from nsa_doctor.checkpoints.record import NotFinite
from nsa_doctor.checkpoints.values import CHUNK_BYTES, piece_of, stretches
from nsa_doctor.wording import joined, short_bytes

_MOST_NAMED = 20
_LEAST_MASK = 0.25


@dataclass
class Scan:
    """What was seen; `unseen` says what was not, and why."""

    not_finite: list[NotFinite] = field(default_factory=list)
    num_not_finite: int = 0
    masks: list[str] = field(default_factory=list)
    unread: dict[str, int] = field(default_factory=dict)
    num_left: int = 0

    def unseen(self, deadline: Deadline) -> str:
        """Which tensors were not looked at and why; nothing when all were."""
        parts = [f"{count:,} of them: {why}" for why, count in self.unread.items()]
        if self.num_left:
            parts.append(
                f"{self.num_left:,} of them: there was no time in {deadline.seconds:g} s; --timeout allows more"
            )
        return "; ".join(parts)

    def notes(self) -> list[str]:
        """What is odd and not wrong."""
        if not self.masks:
            return []
        more = f" and {len(self.masks) - 3} more" if len(self.masks) > 3 else ""
        return [f"infinities as masks and unset extremes have them: {joined(self.masks[:3])}{more}"]


def scan(contents: Contents, deadline: Deadline, never_masks: Collection[str] = ()) -> Scan:
    """Look at everything, until the time is up; a FaultError at the first bytes that are not what was written.

    Tensors of the names `never_masks` are none, whatever they look like.
    """
    seen = Scan()
    for summed in contents.summed:
        if deadline.is_over:
            break
        check_sum(summed, deadline)
    tensors = sorted(contents.tensors, key=_size)  # a gate is small: what matters most comes first
    for index, tensor in enumerate(tensors):
        if deadline.is_over:
            seen.num_left = len(tensors) - index
            break
        _look_at(tensor, seen, deadline, tensor.name not in never_masks)
    return seen


def check_sum(summed: Summed, deadline: Deadline) -> None:
    """Hold bytes against their CRC-32; leaves them when the time is up."""
    crc, place, storage = 0, 0, summed.storage
    while place < storage.num_bytes:
        if deadline.is_over:
            return
        data = storage.read(place, min(CHUNK_BYTES, storage.num_bytes - place))
        crc, place = zlib.crc32(data, crc), place + len(data)
    if crc != summed.crc:
        what = f"{short_bytes(storage.num_bytes)} have the CRC {crc:08x} and were written with {summed.crc:08x}"
        raise FaultError(
            "crc", f"{storage.name} was changed or damaged: its {what}; copy it again, or use an earlier one"
        )


def _size(tensor: Tensor) -> int:
    return math.prod(tensor.shape) if isinstance(tensor, Stored) and tensor.storage is None else _bytes(tensor)


def _bytes(tensor: Tensor) -> int:
    if isinstance(tensor, Stored):
        return min(math.prod(tensor.shape), tensor.storage.num_bytes if tensor.storage is not None else 0)
    return math.prod(tensor.shape)


def _look_at(tensor: Tensor, seen: Scan, deadline: Deadline, may_be_mask: bool) -> None:
    if isinstance(tensor, Stored) and tensor.unread:
        seen.unread[tensor.unread] = seen.unread.get(tensor.unread, 0) + 1
        return
    total, count = Unfinite(), 0
    for part in _parts(tensor, deadline):
        if not is_float(part.dtype):
            continue
        for stretch in stretches(part):
            if deadline.is_over:
                seen.num_left += 1
                return
            for chunk in stretch.chunks():
                total += unfinite(chunk, stretch.dtype)
            count += stretch.count
    if not total.total:
        return
    if may_be_mask and (_is_extreme(tensor, total, count) or _is_zero_else(tensor, total, deadline)):
        seen.masks.append(quoted(tensor.name))
        return
    seen.num_not_finite += 1
    if len(seen.not_finite) < _MOST_NAMED:
        infinite = total.num_inf + total.num_minus_inf
        seen.not_finite.append(NotFinite(name=tensor.name, num_nan=total.num_nan, num_inf=infinite, num_values=count))


def _parts(tensor: Tensor, deadline: Deadline) -> Iterator[Stored]:
    """The tensor, or its pieces one by one, each checked when it is opened."""
    if isinstance(tensor, Stored):
        yield tensor
        return
    for piece in tensor.pieces:
        if deadline.is_over:
            return
        contents = piece.open()
        for summed in contents.summed:
            check_sum(summed, deadline)
        yield piece_of(tensor, contents.tensors, piece.shape)


def _is_extreme(tensor: Tensor, total: Unfinite, count: int) -> bool:
    """One number, all of one infinity, or a matrix of which a good part is minus infinity."""
    if total.num_nan:
        return False
    if count == 1 or count in (total.num_inf, total.num_minus_inf):
        return True
    return not total.num_inf and len(tensor.shape) > 1 and total.num_minus_inf >= _LEAST_MASK * count


def _is_zero_else(tensor: Tensor, total: Unfinite, deadline: Deadline) -> bool:
    """Whether it holds minus infinity, and otherwise exact zeros alone, more than one of them."""
    if total.num_nan or total.num_inf:
        return False
    num_zero = num_other = 0
    for part in _parts(tensor, deadline):
        for stretch in stretches(part):
            for chunk in stretch.chunks():
                values = decoded(chunk, stretch.dtype)
                num_zero += int((values == 0).sum())
                num_other += int(values.size)
    return num_zero > 1 and num_zero + total.num_minus_inf == num_other
