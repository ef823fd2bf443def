"""How far a function's answer may be from the truth: what plain torch achieves in its dtype, doubled, never tuned.

Errors are measured four ways, so that neither a few wrong rows nor a small factor on all of them can hide: at one
element beside the magnitude of the terms that add up there, over 16 rows of one head and over a whole head beside their
norm, and as a factor of the whole tensor. Where terms cancel, in some rows or in all, the first alone says anything.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nsa_doctor.probes.functions.magnitudes import magnitudes
from nsa_doctor.probes.functions.oracle import Arithmetic, Solution, solve
from nsa_doctor.subject.function import Problem

TILE = 16
_TINY = 1e-300
_SUMS, _FEW_ROUNDINGS = 16.0, 2.0
_MOST_NOISE = 0.1
_ROUNDINGS_OF_SCORES = 8
_CANCELLED = 300.0
_USUAL_SHARE = 0.3


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far one tensor is from the truth: each a ratio, largest of its kind; NaN where a value is.

    `noise` is the error of the whole tensor beside its norm: where it is large, the terms cancel and rounding is left.
    """

    element: float
    tile: float
    whole: float
    factor: float
    noise: float


_NOWHERE = Distance(element=0.0, tile=0.0, whole=0.0, factor=0.0, noise=0.0)


@dataclass(frozen=True, kw_only=True)
class Excess:
    """Where an answer leaves its bound: by which measure, how large, how large it may be, and the worst index."""

    tensor: str
    measure: str
    error: float
    bound: float
    index: tuple[int, ...]
    value: float
    truth: float
    num_wrong: int
    num_rows: int
    factor: float


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The truth of one problem, and what plain torch makes of it in the dtype that the function is examined in.

    noise: what is left of terms that cancel, a share of their magnitude.
    """

    truth: Mapping[str, Tensor]
    size: Mapping[str, Tensor]
    limits: Mapping[str, Distance]
    roundings: Mapping[str, float]
    eps: float
    noise: float
    overflowing: frozenset[str] = frozenset()
    is_undetermined: bool = False  # one rounding of a score changes its weight altogether: outputs are finite, no more

    def excess(self, name: str, value: Tensor) -> Excess | None:
        """Where a tensor of that name leaves its bound; None where it does not. A value that is NaN always does."""
        truth, size, limit = self.truth[name], self.size[name], self.limits[name]
        value = value.detach().double()
        rounding = self.roundings.get(name, 0.5 * self.eps)
        if name in self.overflowing and not bool(value.isfinite().all()):
            return None  # plain torch is not finite in this dtype either
        if self.is_undetermined and (name not in ("out", "lse") or bool(value.isfinite().all())):
            return None
        found = distance(value, truth, size, rounding, self.noise)
        for measure in ("element", "tile", "whole", "factor"):
            error, bound = getattr(found, measure), getattr(limit, measure)
            if not error <= bound:
                return _excess(name, value, truth, size, (measure, error, bound), rounding, limit, found)
        return None


def oracle_bounds(problem: Problem, dtype: torch.dtype, device: str, wants_gradients: bool = True) -> Bounds:
    """Solve it in float64 and, several ways, in the dtype."""
    truth = solve(problem, Arithmetic(), wants_gradients).tensors
    terms = magnitudes(problem, truth)
    size, largest = terms.tensors, terms.largest_score
    eps = torch.finfo(dtype).eps
    shared = 0.5 * eps * (problem.spec.ratio + 1)  # gradients of a group's heads are added up
    roundings = {name: shared if name in ("dk", "dv") else eps for name in truth}  # of a weight, and of the result
    sums, few = _of_terms(problem, dtype)
    noise = max(sums, eps / _CANCELLED)
    found = [
        {
            name: distance(value.double(), truth[name], size[name], roundings[name], noise)
            for name, value in other.tensors.items()
        }
        for other in _plain(problem, dtype, device, wants_gradients)
    ]
    limits = {name: _limit([each[name] for each in found], truth[name], size[name], eps, sums, few) for name in truth}
    # A backward that computes scores again in another way than its forward has every weight off by a few roundings.
    again = _ROUNDINGS_OF_SCORES * torch.finfo(torch.promote_types(dtype, torch.float32)).eps * largest
    limits |= {name: _wider(limit, again) for name, limit in limits.items() if name.startswith("d")}
    overflowing = frozenset(name for name in truth if not math.isfinite(found[0][name].element))
    return Bounds(
        truth=truth,
        size=size,
        limits=limits,
        roundings=roundings,
        eps=eps,
        noise=noise,
        overflowing=overflowing,
        is_undetermined=eps * largest > 1,
    )


def _wider(limit: Distance, share: float) -> Distance:
    """The limit where all weights may be off by so large a share of themselves."""
    return replace(limit, tile=limit.tile + share, whole=limit.whole + share, factor=limit.factor + share)


def bounds_between(
    problem: Problem, right: Mapping[str, Tensor], others: Sequence[Mapping[str, Tensor]], dtype: torch.dtype
) -> Bounds:
    """Of an answer that is taken to be right, and what another arithmetic makes of it.

    Which keys are read is not known where nothing is declared: the magnitude of the terms is that of all keys that may
    be read, and at least what is usual in a row of the answer, for functions that compute something else.
    """
    eps = torch.finfo(dtype).eps
    sums, few = _of_terms(problem, dtype)
    # What is usual counts as many terms as it takes to allow a few roundings of it.
    usual = (_SUMS * torch.finfo(torch.promote_types(dtype, torch.float32)).eps + _FEW_ROUNDINGS * eps) / (sums + few)
    truth = {name: value.double() for name, value in right.items()}
    terms = magnitudes(problem, truth).tensors
    size = {name: torch.maximum(terms[name], usual * usual_in(value)) for name, value in truth.items()}
    roundings, noise = dict.fromkeys(truth, 0.5 * eps), max(sums, eps / _CANCELLED)
    limits = {}
    for name, value in truth.items():
        found = [
            distance(other[name].double(), value, size[name], 0.5 * eps, noise) for other in others if name in other
        ]
        limits[name] = _limit(found or [_NOWHERE], value, size[name], eps, sums, few)
    return Bounds(truth=truth, size=size, limits=limits, roundings=roundings, eps=eps, noise=noise)


def usual_in(value: Tensor) -> Tensor:
    """What is usual in a row, and a little of what is usual in the tensor."""
    finite = value.masked_fill(value.isinf(), 0.0).abs()
    return torch.maximum(finite, finite.mean(-1, keepdim=True)) + 0.1 * (finite.mean() if finite.numel() else 0.0)


def _of_terms(problem: Problem, dtype: torch.dtype) -> tuple[float, float]:
    """What adding up the terms of an element rounds, and a rounded weight where there are few; shares of the terms."""
    shape, wide = problem.shape, torch.promote_types(dtype, torch.float32)
    sums = math.sqrt(max(shape.keys, shape.queries, shape.head)) * torch.finfo(wide).eps
    return sums, 0.5 * torch.finfo(dtype).eps / math.sqrt(max(1, min(shape.keys, shape.queries)))


def _plain(problem: Problem, dtype: torch.dtype, device: str, wants_gradients: bool) -> list[Solution]:
    ways = [
        Arithmetic(dtype),
        Arithmetic(dtype, order=1),
        Arithmetic(dtype, part=16),
        Arithmetic(dtype, order=2, part=3),
    ]
    if dtype == torch.float32 and device == "cuda":
        ways.append(Arithmetic(dtype, is_matmul_rounded=True))
    if dtype in (torch.float16, torch.bfloat16):
        ways.append(Arithmetic(torch.float32))
    solutions = [solve(problem, way, wants_gradients) for way in ways]
    return [
        Solution(tensors={name: value.to(dtype) if name != "lse" else value for name, value in each.tensors.items()})
        for each in solutions
    ]


def distance(value: Tensor, truth: Tensor, size: Tensor, rounding: float, noise: float) -> Distance:
    """Measure one tensor; what rounding it once may cost, a share of the truth, is no error of an element or a tile.

    Rows whose terms cancel, so that `noise` of their magnitude is a good part of what is left, count by element alone.
    """
    if value.numel() == 0:
        return _NOWHERE
    wrong = (value - truth).masked_fill(value == truth, 0.0)
    finite = truth.masked_fill(truth.isinf(), 0.0)
    beyond = (wrong.abs() - rounding * finite.abs()).clamp_min(0.0)
    element = (beyond / (size + _TINY)).max()
    tiles, rights, terms = (_tiled(x).norm(dim=-1) for x in (wrong, finite, size))  # [B, heads, tiles]
    usual = rights.square().mean(-1, keepdim=True).sqrt()
    rights = torch.maximum(rights, _USUAL_SHARE * usual)
    heads, truths, scales = (_by_head(x) for x in (wrong, finite, size))
    tile = _share(tiles, rights, noise * terms)
    scale = scales.norm(dim=-1)
    whole = _share(heads.norm(dim=-1), torch.maximum(truths.norm(dim=-1), rounding * scale), noise * scale)
    square = (finite * finite).sum()
    factor = (wrong * finite).sum().abs() / (square + _TINY)
    return Distance(
        element=float(element),
        tile=tile,
        whole=whole,
        factor=float(factor),
        noise=float(wrong.norm() / (square.sqrt() + _TINY)),
    )


def _share(wrong: Tensor, right: Tensor, left: Tensor) -> float:
    """The largest error beside what is right; none where what is left of terms that cancel is a good part of that."""
    return float((wrong / (right + _TINY)).masked_fill(left > _MOST_NOISE * right, 0.0).max())


def _limit(plain: list[Distance], truth: Tensor, size: Tensor, eps: float, sums: float, few: float) -> Distance:
    """Twice the worst of plain torch, those left out that are not finite themselves, and what rounding alone costs."""
    sound = [each for each in plain if all(math.isfinite(x) for x in vars(each).values())]
    worst = {name: max((getattr(each, name) for each in sound), default=math.inf) for name in Distance.__annotations__}
    finite = truth.masked_fill(truth.isinf(), 0.0)
    ratio = float(size.norm() / (finite.norm() + _TINY))
    count = max(1, truth.numel())
    if (
        not max(worst["noise"], sums * ratio, eps * ratio / _CANCELLED) <= _MOST_NOISE
    ):  # the terms cancel: what is left of them is rounding
        worst |= {"tile": math.inf, "whole": math.inf, "factor": math.inf}
    return Distance(
        element=2 * worst["element"] + sums + few,
        tile=2 * worst["tile"] + eps + sums * min(ratio, 1 / eps),
        whole=2 * worst["whole"] + eps + sums * min(ratio, 1 / eps),
        factor=2 * worst["factor"]
        + worst["noise"]
        + eps / 4
        + sums * min(ratio, 1 / eps) / math.sqrt(count)
        + 4 * sums,
        noise=math.inf,
    )


def _by_head(x: Tensor) -> Tensor:
    """[heads, values of one head]; of lse, which is [B, H, S], too; of what has no heads, one row."""
    if x.ndim == 4:
        return x.permute(2, 0, 1, 3).flatten(1)
    return x.transpose(0, 1).flatten(1) if x.ndim == 3 else x.flatten()[None]


def _tiled(x: Tensor) -> Tensor:
    """[B, heads, tiles, values of 16 rows], the last one filled with zeros."""
    rows = {4: lambda: x.permute(0, 2, 1, 3), 3: lambda: x[..., None]}.get(
        x.ndim, lambda: x.flatten()[None, None, :, None]
    )()
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[2] % TILE))
    return rows.unflatten(2, (-1, TILE)).flatten(3)


def _excess(
    name: str,
    value: Tensor,
    truth: Tensor,
    size: Tensor,
    measured: tuple[str, float, float],
    rounding: float,
    limit: Distance,
    found: Distance,
) -> Excess:
    wrong = (value - truth).abs().masked_fill(value == truth, 0.0)
    ratio = (wrong - rounding * truth.masked_fill(truth.isinf(), 0.0).abs()).clamp_min(0.0) / (size + _TINY)
    ratio = ratio.masked_fill(ratio.isnan(), math.inf)
    flat = int(ratio.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), value.shape))
    rows = (ratio > limit.element).flatten(0, -2).any(-1) if value.ndim == 4 else (ratio > limit.element).flatten()
    return Excess(
        tensor=name,
        measure=measured[0],
        error=measured[1],
        bound=measured[2],
        index=index,
        value=float(value[index]),
        truth=float(truth[index]),
        num_wrong=int(rows.sum()),
        num_rows=rows.numel(),
        factor=found.factor,
    )
