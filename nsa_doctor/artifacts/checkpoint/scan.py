"""Looks at every byte: whether it matches its checksum, and whether every number is finite.

Infinities that are no illness: minus infinity in a mask (where all else is zero, or in a quarter or more of a matrix),
and a tensor of one number, or all of one infinity, as running extremes are before they have seen anything.
"""

import math
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from numpy.typing import NDArray

from nsa_doctor.artifacts.checkpoint.content_hash import digest
from nsa_doctor.artifacts.checkpoint.contents import Composed, Contents, Divided, Stored, Summed, Tensor
from nsa_doctor.artifacts.checkpoint.dtypes import Unfinite, decoded, is_float, unfinite
from nsa_doctor.artifacts.checkpoint.fault import FaultError, quoted, shortened
from nsa_doctor.artifacts.checkpoint.limits import Deadline
from nsa_doctor.artifacts.checkpoint.record import NotFinite
from nsa_doctor.artifacts.checkpoint.values import CHUNK_BYTES, piece_of, stretches
from nsa_doctor.core.text import joined, short_bytes

_MOST_NAMED, _MOST_REASONS = 20, 3
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
        parts = [f"{count:,} of them: {why}" for why, count in [*self.unread.items()][:_MOST_REASONS]]
        if len(self.unread) > _MOST_REASONS:
            parts.append(f"{sum([*self.unread.values()][_MOST_REASONS:]):,} of them for other reasons")
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
    for hashed in contents.hashed:
        if digest([hashed.source], deadline) not in ("", hashed.sha256):
            raise FaultError(
                "crc",
                f"{hashed.source.name} was changed or damaged: its SHA-256 is not the one it was written with; copy it "
                "again, or use an earlier one",
            )
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
    if isinstance(tensor, Composed):
        return sum(map(_bytes, tensor.parts))
    if isinstance(tensor, Stored):
        return min(math.prod(tensor.shape), tensor.storage.num_bytes if tensor.storage is not None else 0)
    return math.prod(tensor.shape)


def _look_at(tensor: Tensor, seen: Scan, deadline: Deadline, may_be_mask: bool) -> None:
    why = _unseen(tensor)
    if why:
        seen.unread[why] = seen.unread.get(why, 0) + 1
        return
    total, count = _of_scale(tensor), 0
    for values, dtype in _numbers(tensor, deadline):
        total += unfinite(values, dtype)
        count += values.size
    is_mask = bool(total.total) and may_be_mask and _may_be_mask(tensor, total, count, deadline)
    if deadline.is_over:
        seen.num_left += 1
    elif is_mask:
        seen.masks.append(quoted(tensor.name))
    elif total.total:
        seen.num_not_finite += 1
        infinite = total.num_inf + total.num_minus_inf
        bad = NotFinite(name=shortened(tensor.name), num_nan=total.num_nan, num_inf=infinite, num_values=count)
        seen.not_finite += [bad] if len(seen.not_finite) < _MOST_NAMED else []


def _unseen(tensor: Tensor) -> str:
    """Why not even its bytes can be looked at; nothing where they can."""
    if isinstance(tensor, Composed):
        is_seen = tensor.parts and not tensor.is_opaque
        return next(filter(None, map(_unseen, tensor.parts)), "" if is_seen else tensor.unread)
    return tensor.unread if isinstance(tensor, Stored) and tensor.storage is None else ""


def _of_scale(tensor: Tensor) -> Unfinite:
    """What one scale for a whole tensor makes of all its values when it is not finite itself."""
    scales = tensor.quantised.scales if isinstance(tensor, Stored) and tensor.quantised is not None else 1.0
    is_bad = isinstance(scales, float) and not math.isfinite(scales)
    return Unfinite(num_nan=math.prod(tensor.shape)) if is_bad else Unfinite()


def _numbers(tensor: Tensor, deadline: Deadline) -> Iterator[tuple[NDArray, str]]:
    """All of them that can be other than finite, until the time is up."""
    for part in _parts(tensor, deadline):
        for stretch in stretches(part) if is_float(part.dtype) else ():
            for values in stretch.chunks():
                if deadline.is_over:
                    return
                yield values, stretch.dtype


def _parts(tensor: Tensor, deadline: Deadline) -> Iterator[Stored]:
    """The tensor with its scales, its parts, or its pieces one by one, each checked when it is opened."""
    if not isinstance(tensor, Divided):
        for part in tensor.parts if isinstance(tensor, Composed) else (tensor,):
            yield part
            if part.quantised is not None:
                yield from (each for each in (part.quantised.scales, part.quantised.zeros) if isinstance(each, Stored))
        return
    for piece in tensor.pieces:
        if deadline.is_over:
            return
        contents = piece.open()
        for summed in contents.summed:
            check_sum(summed, deadline)
        yield piece_of(tensor, contents.tensors, piece.shape)


def _may_be_mask(tensor: Tensor, total: Unfinite, count: int, deadline: Deadline) -> bool:
    """One number, all of one infinity, a matrix that is minus infinity for a good part, or that among zeros alone."""
    if total.num_nan:
        return False
    if count == 1 or count in (total.num_inf, total.num_minus_inf):
        return True
    if total.num_inf:
        return False
    if len(tensor.shape) > 1 and total.num_minus_inf >= _LEAST_MASK * count:
        return True
    num_zero = sum(int((decoded(values, dtype) == 0).sum()) for values, dtype in _numbers(tensor, deadline))
    return num_zero > 1 and num_zero + total.num_minus_inf == count
