"""Whether scores between equal tokens depend on their distance alone, and whether a pass turns by angles at all."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.rotated import turned_tensors
from nsa_doctor.probes.attention.score_watch import MASKED
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_TURNS = frozenset({"sin", "cos", "polar"})
_NAMES = re.compile(
    r"(^|[._])(rope|rotary\w*|cos\w*|sin|sin_cached|freqs?\w*|inv_freq)($|[._])|rotary|rope", re.IGNORECASE
)
_LEAST = 1e-6  # of the scores: differences below it are roundings
_ROOM = 0.5  # by how much the factor of a row may grow from one position to the next
_TOLERANCE = 0.05  # of the largest, where the table or its angles are rounded to half precision
_SAFETY = 4.0  # healthy tables make one rounding of themselves, and angles a quarter of a rounding for each position
_FEWEST = 16  # different values: a mask or a slope of each head has fewer
_EXACT = 1e-6
_ABOVE = "that of the query and its own key"


@dataclass(frozen=True)
class Stray:
    """Where scores depend on more than distance: from which query on, by how much, and what is seen, in words."""

    query: int
    size: float
    text: str


@dataclass(frozen=True)
class Rotation:
    """What a pass rounds to, the distance from 1 to the next number, and whether it evidently turns by angles."""

    eps: float
    is_seen: bool

    def tolerance(self, length: int) -> float:
        """What scores may depend on more than distance, as a part of the largest: angles are rounded as they grow."""
        return min(_TOLERANCE, _SAFETY * length * self.eps)


def rotation(sp: BuiltModule, x: Tensor) -> Rotation:
    """Whether a pass takes sines, or something of the module bears the name of a rotation, and in which precision."""
    names = [name for name, _ in (*sp.module.named_modules(), *sp.module.named_buffers())]
    kinds = [type(module).__name__ for module in sp.module.modules()]
    with torch.no_grad(), _Turns() as watch:
        sp(x)
    kept = [*sp.module.buffers(), *(each for each in sp.module.parameters() if not each.requires_grad)]
    dtypes = {*watch.dtypes, *(dtype for tensor in kept if (dtype := _kept_in(tensor)) is not None)}
    if torch.get_float32_matmul_precision() != "highest" and torch.float32 in dtypes:
        dtypes.add(torch.bfloat16)
    is_seen = watch.is_seen or any(_NAMES.search(name) for name in (*names, *kinds))
    return Rotation(max(torch.finfo(dtype).eps for dtype in (torch.float32, *dtypes)), is_seen)


def strays(scores: Tensor, tolerance: float = _TOLERANCE) -> Stray | None:
    """What strays most from scores [..., S, S] that distance alone decides; None where nothing does.

    What a whole row of scores is moved by makes no difference to a softmax, and a row may be scaled by its position.
    """
    above, size = _above(scores)
    own = scores.detach().double().flatten(0, -3).diagonal(dim1=1, dim2=2)
    half = above.shape[-1] // 2
    return (
        _by_pair(above, size, tolerance, 1)
        or (_by_pair(above, size, tolerance, half) if half > 1 else None)
        or _by_query(above, own, size)
    )


def _above(scores: Tensor) -> tuple[Tensor, float]:
    """By how much each score [N, S, S] stands above that of the query and its own key, and the largest there is."""
    rows = scores.detach().double().flatten(0, -3)
    is_seen = torch.isfinite(rows) & (rows > MASKED)
    own = rows.diagonal(dim1=1, dim2=2)[..., None]
    above = torch.where(is_seen & is_seen.diagonal(dim1=1, dim2=2)[..., None], rows - own, torch.nan)
    return above, float(torch.where(is_seen, rows.abs(), 0.0).max())


def is_of_a_grid(scores: Tensor, tolerance: float) -> bool:
    """Whether scores [..., S, S] of equal tokens depend on how many rows and columns of an image lie between them.

    Tokens are then the places of an image, one row after another: a whole row on, scores are those of before, and one
    place on where no row ends between; a key one row back is scored otherwise than the query's own.
    """
    above, size = _above(scores)
    largest = float(torch.where(torch.isfinite(above), above.abs(), 0.0).max())
    length, bound = above.shape[-1], _bound(largest, size, tolerance)
    if _moved(above, 1) <= bound:
        return False
    place = torch.arange(length, device=above.device)
    for width in range(2, length // 2 + 1):
        if _moved(above, width) <= bound:
            is_last = place % width == width - 1
            a_row_back = above.diagonal(-width, dim1=1, dim2=2).abs()
            tells_rows = bool((torch.where(torch.isfinite(a_row_back), a_row_back, 0.0).amax(-1) > bound).all())
            return tells_rows and _moved(above, 1, is_last[:, None] | is_last) <= bound
    return False


def repeats_somewhere(scores: Tensor, tolerance: float) -> bool:
    """Whether scores [..., S, S] are the same again some number of positions on, each above its own token's.

    Where those that are compared are not all alike.
    """
    above, size = _above(scores)
    sizes = torch.where(torch.isfinite(above), above.abs(), 0.0)
    bound = _bound(float(sizes.max()), size, tolerance)
    return any(
        _moved(above, apart) <= bound < float(sizes[:, apart:, apart:].max())
        for apart in range(1, above.shape[-1] // 2 + 1)
    )


def _moved(above: Tensor, apart: int, is_left_out: Tensor | None = None) -> float:
    """By how much scores differ from those so many positions on, but for some [S, S]."""
    both = above[:, apart:, apart:] - above[:, :-apart, :-apart]
    if is_left_out is not None:
        both = both.masked_fill(is_left_out[:-apart, :-apart], 0.0)
    return float(torch.where(torch.isfinite(both), both.abs(), 0.0).max())


def strays_without_softmax(sp: BuiltModule, x: Tensor, turned: Rotation) -> Iterator[tuple[Place, Stray]]:
    """Where products of turned queries and keys depend on more than distance, although no softmax follows.

    Where the two meet in a state alone, as in linear attention, they are tensors that are turned by the same table; one
    of them that is a rotation, or a product of both that depends on distance, shows that this is meant.
    """
    found = turned_tensors(sp, x)
    for product in found.products:
        stray = _of_product(product.scores, turned.tolerance(x.shape[1]))
        if stray is not None:
            yield product.place, stray
    for one, other in found.pairs:
        stray = _of_product(one.values @ other.values.mT, _TOLERANCE)
        if stray is not None and all(_of_product(each.values @ each.values.mT, _TOLERANCE) for each in (one, other)):
            yield one.place, stray


def _of_product(scores: Tensor, tolerance: float) -> Stray | None:
    """What strays most from scores [N, S, S], looked at among the keys before each query."""
    is_later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    rows, size = scores.detach().double().masked_fill(is_later, torch.nan), float(scores.abs().max())
    found = (_by_pair(rows, size, tolerance, apart, "") for apart in (1, rows.shape[-1] // 2))
    return next((each for each in found if each is not None), None)


def _by_pair(above: Tensor, size: float, tolerance: float, apart: int, than: str = _ABOVE) -> Stray | None:
    """Pairs so many positions on stand otherwise above their own token's score, whatever factor their row may have."""
    one, other = above[:, :-apart, :-apart], above[:, apart:, apart:]
    both = torch.isfinite(one) & torch.isfinite(other)
    one, other = torch.where(both, one, 0.0), torch.where(both, other, 0.0)
    square = one.square().sum(-1, keepdim=True)
    factor = torch.where(square > 0, (one * other).sum(-1, keepdim=True) / square.clamp_min(1e-300), 1.0)
    is_scaled = (factor - 1).abs() <= _ROOM if apart == 1 else factor > 0
    moved = (other - torch.where(is_scaled, factor, 1.0) * one).abs()
    largest = float(torch.maximum(one.abs(), other.abs()).max())
    if not float(moved.max()) > _bound(largest, size, tolerance) or largest <= _LEAST * size:
        return None
    head, query, key = (int(each) for each in torch.unravel_index(moved.argmax(), moved.shape))
    pair = f"that of query {query} and key {key}, and that of query {query + apart} and key {key + apart}"
    stand = _both_shown(float(one[head, query, key]), float(other[head, query, key]))
    return Stray(query, float(moved.max()), f"{pair}, {f'stand {stand} above {than}' if than else f'are {stand}'}")


def _bound(largest: float, size: float, tolerance: float) -> float:
    """What the largest of them may differ by without being another; `size` is that of the scores they stand above."""
    return min(_TOLERANCE * largest, tolerance * max(size, largest))


def _by_query(above: Tensor, own: Tensor, size: float) -> Stray | None:
    """A head scores all keys alike, and rises and falls with the query: keys are not turned, and queries are."""
    is_flat = torch.where(torch.isfinite(above), above.abs(), 0.0).amax((1, 2)) <= _LEAST * size
    steps = own.diff(dim=1)
    swing = torch.minimum(steps.amax(1), -steps.amin(1))
    wrong = is_flat & (swing > _TOLERANCE * own.abs().amax(1)) & torch.isfinite(own).all(1)
    if not bool(wrong.any()):
        return None
    head = int(wrong.nonzero()[0])
    query = int(steps[head].abs().argmax())
    scored = f"{float(own[head, query]):.3g} for query {query} and {float(own[head, query + 1]):.3g} for the next"
    return Stray(
        query, float(steps[head].abs().max()), f"every key has the same, {scored}: queries are turned, keys not"
    )


def _both_shown(one: float, other: float) -> str:
    """Two numbers with as many digits as show that they differ."""
    digits = next((each for each in range(3, 9) if f"{one:.{each}g}" != f"{other:.{each}g}"), 9)
    return f"{one:.{digits}g} and {other:.{digits}g}"


def _kept_in(tensor: Tensor) -> torch.dtype | None:
    """The half precision that all values of a table have, or have up to one factor; None where they have more."""
    if not tensor.is_floating_point() or tensor.ndim < 2:
        return None
    values = tensor.detach().double().flatten()
    values = values[torch.isfinite(values) & (values != values.round())].abs().unique()
    if len(values) < _FEWEST:
        return None
    for dtype in (torch.bfloat16, torch.float16):
        for each in (values, values / values.max()):
            if bool(((each.to(dtype).double() - each).abs() <= _EXACT * each).all()):
                return dtype
    return None


class _Turns(DispatchWatcher):
    """Notes whether sines are taken, and the floating dtypes in which there are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.is_seen = False
        self.dtypes: set[torch.dtype] = set()

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what it takes and returns."""
        self.is_seen = self.is_seen or operation_name(func) in _TURNS
        result = func(*args, **kwargs)
        self.dtypes |= {
            each.dtype.to_real()
            for each in tensors_in(args, kwargs, result)
            if each.numel() > 1 and (each.is_floating_point() or each.is_complex())
        }
        return result
