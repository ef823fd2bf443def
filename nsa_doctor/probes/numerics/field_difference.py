"""How two tensors of one name differ that two ways of filling a state left: where, by how much, and of which kind."""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.text import counted
from nsa_doctor.probes.model.state_fields import Field, Value

_ROUNDINGS = 1e4  # two orders of the same sums may part by this many units in the last place
_LEAST_PAIRS = 2
_MOST_COMPARED = 1 << 22
_TURNED = re.compile(r", the second turned as for (\d+) positions? (earlier|later)")
_ROTATIONS = "the values are rotations of each other"


@dataclass(frozen=True)
class FieldDifference:
    """A field that two ways leave different; `position` is the first index along `dimension` that differs.

    `kind` is a clause that says what the difference is like; empty where nothing is known of it. `error` is the largest
    difference and `scale` the largest value. `first` and `other` are the fields, None where a way leaves none.
    """

    path: str
    first: Field | None
    other: Field | None
    dimension: int | None = None
    position: int | None = None
    num_positions: int = 0
    num_compared: int = 0
    error: float = 0.0
    scale: float = 0.0
    kind: str = ""
    is_shifted: bool = False

    @property
    def unfilled_by(self) -> str:
        """`first` or `second` where that way leaves nothing there and the other does; empty else."""
        for way, other in (("first", "second"), ("second", "first")):
            if self.kind.startswith(f"the {way} way leaves zeros") or self.kind == f"is left by the {other} way alone":
                return way
        return ""

    @property
    def is_rotation(self) -> bool:
        """Whether the two are rotations of each other."""
        return self.kind.startswith(_ROTATIONS)

    @property
    def text(self) -> str:
        """`differs at 3 of 40 positions (dimension 1), first at 37, by up to 0.8 (values up to 2): the values …`."""
        if self.first is None or self.other is None or not isinstance(self.first.value, Tensor):
            return self.kind
        where = ""
        if self.position is not None:
            share = f"{self.num_positions} of {self.num_compared} positions (dimension {self.dimension})"
            where = f" at {share}, first at {self.position},"
        size = f" by up to {self.error:.2g} (values up to {self.scale:.2g})" if self.scale else ""
        return f"differs{where}{size}{f': {self.kind}' if self.kind else ''}"


def difference(path: str, first: Field | None, other: Field | None, dimension: int | None) -> FieldDifference | None:
    """None where both hold the same as far as both define it; `dimension` is the one that tokens are written along.

    Where one has room for more, the overlap that agrees best counts: from the front, or from the end.
    """
    one, two = _value(first), _value(other)
    if one is None or two is None:
        alone = "second" if one is None else "first"
        is_same = _is_empty(one) and _is_empty(two)
        return None if is_same else FieldDifference(path, first, other, kind=f"is left by the {alone} way alone")
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        same = type(one) is type(two) and one == two
        kind = f"is {_shown(one)} and {_shown(two)}"
        return None if same else FieldDifference(path, first, other, kind=kind)
    if one.ndim != two.ndim:
        return FieldDifference(path, first, other, kind=f"has the shapes {list(one.shape)} and {list(two.shape)}")
    overlaps = [_compared(path, first, other, pair, dimension) for pair in _overlaps(one, two)]
    if not overlaps:
        return FieldDifference(path, first, other, kind=f"has the shapes {list(one.shape)} and {list(two.shape)}")
    if any(found is None for found in overlaps):
        return None
    return min((found for found in overlaps if found is not None), key=lambda found: found.num_positions)


def written_dimension(before: Field | None, after: Field | None) -> int | None:
    """Along which dimension one token more is written: the one that grows, or in which the fewest indices change."""
    one, two = _value(before), _value(after)
    if not isinstance(one, Tensor) or not isinstance(two, Tensor) or one.ndim != two.ndim:
        return None
    grown = [dim for dim in range(two.ndim) if one.shape[dim] != two.shape[dim]]
    if grown:
        return grown[0]
    changed = (one != two) & ~(one.isnan() & two.isnan()) if two.is_floating_point() else one != two
    shares = {dim: _num_hit(changed, dim) / size for dim, size in enumerate(two.shape) if size > 1}
    best = min(shares, key=lambda dim: shares[dim], default=None)
    if best is not None and 0 < shares[best] < 1:
        return best
    return next((dim for dim in shares if dim and _has_moved_on(one, two, dim)), None)


def _has_moved_on(one: Tensor, two: Tensor, dim: int) -> bool:
    """Whether the second is the first without its oldest index, and another one at its end."""
    size = two.shape[dim] - 1
    return torch.equal(one.narrow(dim, 1, size), two.narrow(dim, 0, size))


def _num_hit(changed: Tensor, dim: int) -> int:
    return int(changed.movedim(dim, 0).flatten(1).any(1).sum()) if changed.ndim > 1 else int(changed.sum())


def _value(field: Field | None) -> Value | None:
    return None if field is None else field.value


def _is_empty(value: Value | None) -> bool:
    """Whether it says no more than nothing would: no elements, or zeros alone."""
    if value is None:
        return True
    return not bool((value != 0).any()) if isinstance(value, Tensor) else not value


def _shown(value: Value) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else str(value)


def _overlaps(one: Tensor, two: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The parts that both may define: all, or the first or the last so many of the one dimension that differs."""
    apart = [dim for dim in range(one.ndim) if one.shape[dim] != two.shape[dim]]
    if len(apart) > 1:
        return []
    if not apart:
        return [(one, two)]
    dim = apart[0]
    size = min(one.shape[dim], two.shape[dim])
    front = (one.narrow(dim, 0, size), two.narrow(dim, 0, size))
    back = (one.narrow(dim, one.shape[dim] - size, size), two.narrow(dim, two.shape[dim] - size, size))
    return [front, back]


def _compared(
    path: str, first: Field | None, other: Field | None, pair: tuple[Tensor, Tensor], dimension: int | None
) -> FieldDifference | None:
    one, two = (part.detach().double() if part.is_floating_point() else part for part in pair)
    if not one.numel():
        return None
    eps = torch.finfo(pair[0].dtype).eps if pair[0].is_floating_point() else 0.0
    differs = _differing(one, two, eps)
    if not bool(differs.any()):
        return None
    has_dimension = dimension is not None and dimension < one.ndim
    hit = differs.movedim(dimension, 0).flatten(1).any(1) if has_dimension and one.ndim > 1 else differs  # type: ignore[arg-type]
    position = int(hit.nonzero()[0, 0]) if has_dimension else None
    at = [part.select(dimension, position) if has_dimension else part for part in (one, two)]  # type: ignore[arg-type]
    shifted = _shifted(at, (one, two), dimension, eps) if has_dimension else ""  # type: ignore[arg-type]
    return FieldDifference(
        path,
        first,
        other,
        dimension=dimension if has_dimension else None,
        position=position,
        num_positions=int(hit.sum()),
        num_compared=hit.numel(),
        error=_largest((at[0].double() - at[1].double()).abs()),
        scale=_largest(torch.maximum(at[0].double().abs(), at[1].double().abs())),
        kind=shifted or _kind_at(one, two, hit, dimension if has_dimension else None, eps),
        is_shifted=bool(shifted),
    )


def _largest(values: Tensor) -> float:
    """The largest that is finite: memory that nobody wrote may hold anything."""
    return float(torch.where(torch.isfinite(values), values, 0.0).max())


def _differing(one: Tensor, two: Tensor, eps: float) -> Tensor:
    """Elements that differ by more than rounding of the vector that they are part of."""
    if not eps:
        return one != two
    size = torch.maximum(one.abs(), two.abs()).nan_to_num(posinf=0.0)
    bound = _ROUNDINGS * eps * (size.amax(-1, keepdim=True) if size.ndim else size)
    same = (one == two) | (one.isnan() & two.isnan())
    return ~(same | ((one - two).abs() <= bound))


def _shifted(at: list[Tensor], both: tuple[Tensor, Tensor], dimension: int, eps: float) -> str:
    """Which way leaves there what belongs elsewhere, and where, in words; empty where neither does."""
    one, two = both
    if not one.is_floating_point() or not bool((one != one.round()).any()):  # numbers that count recur
        return ""
    if (index := _elsewhere(at[0], two, dimension, eps)) is not None:
        return f"the first way leaves there what belongs at {index}"
    if (index := _elsewhere(at[1], one, dimension, eps)) is not None:
        return f"the second way leaves there what belongs at {index}"
    for way, own, other in (("first", at[0], at[1]), ("second", at[1], at[0])):
        index = _rows_elsewhere(own, other, one if way == "second" else two, dimension, eps)
        if index is not None:
            return f"the {way} way leaves there what belongs elsewhere, some of it at {index}"
    return ""


def _rows_elsewhere(own: Tensor, other: Tensor, whole: Tensor, dimension: int, eps: float) -> int | None:
    """The index that holds the first of the rows that differ, where all of them are rows of the other field.

    Of pages, say, in which a token stands in another slot.
    """
    if own.ndim < _LEAST_PAIRS or not own.is_floating_point() or dimension == whole.ndim - 1:
        return None  # along the last dimension there are no rows
    differs = _differing(own, other, eps).any(-1)
    rows = own[differs]
    rows = rows[rows.any(-1)]
    known = whole.movedim(dimension, 0).flatten(1, -2) if whole.ndim > _LEAST_PAIRS else whole.movedim(dimension, 0)
    if not len(rows) or len(rows) * known.numel() > _MOST_COMPARED:
        return None
    known = known.reshape(known.shape[0], -1, whole.shape[-1])
    same = ~_differing(rows[:, None, None], known[None], eps).any(-1)
    found = same.flatten(1).any(1)
    return int(same[0].any(1).nonzero()[0, 0]) if bool(found.all()) else None


def _elsewhere(one: Tensor, two: Tensor, dimension: int, eps: float) -> int | None:
    """The index of `two` that holds this very slice, where it is no slice of zeros."""
    if not bool(one.any()):
        return None
    same = (
        index
        for index in range(two.shape[dimension])
        if not bool(_differing(one, two.select(dimension, index), eps).any())
    )
    return next(same, None)


def _kind_at(one: Tensor, two: Tensor, hit: Tensor, dimension: int | None, eps: float) -> str:
    """The kind at the first position that differs; of a turn that undoes its position at the last one too, whose."""
    if dimension is None:
        return _kind(one, two, _differing(one, two, eps))
    kinds = {}
    for position in (int(hit.nonzero()[0, 0]), int(hit.nonzero()[-1, 0])):
        parts = one.select(dimension, position), two.select(dimension, position)
        kinds[position] = _kind(*parts, _differing(*parts, eps))
    found = {position: _TURNED.search(kind) for position, kind in kinds.items()}
    first = next(iter(kinds.values()))
    senses = {turn and turn[2] for turn in found.values()}
    if len(kinds) < 2 or len(senses) > 1 or any(not turn or int(turn[1]) != at for at, turn in found.items()):
        return first
    return _TURNED.sub(
        f", the {'second' if senses == {'earlier'} else 'first'} turned as for position 0 throughout", first
    )


def _kind(one: Tensor, two: Tensor, apart: Tensor) -> str:
    if not one.is_floating_point() or not bool(torch.isfinite(one).all() & torch.isfinite(two).all()):
        return ""
    if not bool(one[apart].any()) or not bool(two[apart].any()):
        which = "first" if not bool(one[apart].any()) else "second"
        return f"the {which} way leaves zeros there, the other values"
    return (_rotation(one, two) if one.ndim else "") or _multiple(one, two)


def _multiple(one: Tensor, two: Tensor) -> str:
    factor = float((one * two).sum() / one.square().sum())
    is_one = float((two - factor * one).norm()) <= 1e-6 * float(two.norm())
    return f"the second values are {factor:.3g} times the first" if is_one else ""


def _rotation(one: Tensor, two: Tensor) -> str:
    """Whether pairs of channels have equal norms: rotary positions then differ, or one of the two has none."""
    width = one.shape[-1]
    turned = (one - two).abs().flatten(0, -2).amax(0) > 0 if one.ndim > 1 else (one - two).abs() > 0
    reach = int(turned.nonzero()[-1]) + 1 if bool(turned.any()) else 0
    for size in dict.fromkeys((width, reach + reach % 2)):
        if size % 2 or size // 2 < _LEAST_PAIRS or size > width:
            continue
        for name, pairs in (("halves", lambda t: t.unflatten(-1, (2, -1))), ("neighbours", _neighbours)):
            before, after = (pairs(part[..., :size]) for part in (one, two))
            lengths = before.norm(dim=-2), after.norm(dim=-2)
            if bool(((lengths[0] - lengths[1]).abs() <= 1e-6 * lengths[0].max()).all()):
                return f"{_ROTATIONS} (pairs of {name} have equal norms){_turn(before, after)}"
    return ""


def _neighbours(tensor: Tensor) -> Tensor:
    return tensor.unflatten(-1, (-1, 2)).mT


def _turn(before: Tensor, after: Tensor) -> str:
    """By how many positions the pair that turns fastest, one radian each, is ahead."""
    one, two = (torch.atan2(part[..., 1, :], part[..., 0, :])[..., 0].flatten()[0] for part in (before, after))
    angle = float(two - one)
    ahead = min(range(-4096, 4097), key=lambda count: (abs(_wrapped(angle - count)) > 1e-5, abs(count)))
    if abs(_wrapped(angle - ahead)) > 1e-5:
        return ""
    return f", the second turned as for {counted(abs(ahead), 'position')} {'later' if ahead > 0 else 'earlier'}"


def _wrapped(angle: float) -> float:
    turn = 2 * torch.pi
    return (angle + torch.pi) % turn - torch.pi
