"""How far a function's answer may be from the truth: what plain torch achieves in its dtype, doubled, never tuned.

Errors are measured four ways, so that neither a few wrong rows nor a small factor on all of them can hide: at one
element beside the magnitude of the terms that add up there, over 16 rows of one head, over a whole head beside its
norm, and as a factor of the whole tensor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.probes.functions.magnitudes import magnitudes
from nsa_doctor.probes.functions.oracle import Arithmetic, Solution, solve
from nsa_doctor.subject.function import Problem

TILE = 16
_TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far one tensor is from the truth: each a ratio, largest of its kind; NaN where a value is."""

    element: float
    tile: float
    whole: float
    factor: float


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
class Yardstick:
    """The truth of one problem, and what plain torch makes of it in the dtype that the function is examined in."""

    truth: Mapping[str, Tensor]
    size: Mapping[str, Tensor]
    limits: Mapping[str, Distance]
    roundings: Mapping[str, float]
    eps: float

    def excess(self, name: str, value: Tensor) -> Excess | None:
        """Where a tensor of that name leaves its bound; None where it does not. A value that is NaN always does."""
        truth, size, limit = self.truth[name], self.size[name], self.limits[name]
        value = value.detach().double()
        rounding = self.roundings.get(name, 0.5 * self.eps)
        found = distance(value, truth, size, rounding)
        for measure in ("element", "tile", "whole", "factor"):
            error, bound = getattr(found, measure), getattr(limit, measure)
            if not error <= bound:
                return _excess(name, value, truth, size, (measure, error, bound), rounding, limit, found)
        return None


def yardstick(problem: Problem, dtype: torch.dtype, device: str, wants_gradients: bool = True) -> Yardstick:
    """Solve it in float64 and, several ways, in the dtype."""
    truth = solve(problem, Arithmetic(), wants_gradients).tensors
    size = magnitudes(problem, truth)
    eps = torch.finfo(dtype).eps
    half, shared = 0.5 * eps, 0.5 * eps * problem.spec.ratio  # gradients of heads that are shared are added up
    roundings = {name: shared if name in ("dk", "dv") else half for name in truth}
    found = [
        {
            name: distance(value.double(), truth[name], size[name], roundings[name])
            for name, value in other.tensors.items()
        }
        for other in _plain(problem, dtype, device, wants_gradients)
    ]
    terms = max(problem.shape.keys, problem.shape.queries, problem.shape.head)
    wide = torch.promote_types(dtype, torch.float32)
    sums = math.sqrt(terms) * torch.finfo(wide).eps
    few = half / math.sqrt(min(problem.shape.keys, problem.shape.queries))  # a rounded weight, where there are few
    limits = {name: _limit([each[name] for each in found], truth[name], size[name], eps, sums, few) for name in truth}
    return Yardstick(truth=truth, size=size, limits=limits, roundings=roundings, eps=eps)


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


def distance(value: Tensor, truth: Tensor, size: Tensor, rounding: float) -> Distance:
    """Measure one tensor; what rounding it once may cost, a share of the truth, is no error of an element or a tile."""
    if value.numel() == 0:
        return Distance(element=0.0, tile=0.0, whole=0.0, factor=0.0)
    wrong = (value - truth).masked_fill(value == truth, 0.0)
    finite = truth.masked_fill(truth.isinf(), 0.0)
    beyond = (wrong.abs() - rounding * finite.abs()).clamp_min(0.0)
    element = (beyond / (size + _TINY)).max()
    tiles, sizes = (_tiled(x) for x in (beyond, size))
    heads, truths, scales = (_by_head(x) for x in (wrong, finite, size))
    tile = (tiles.norm(dim=-1) / (sizes.norm(dim=-1) + _TINY)).max()
    norm = torch.maximum(truths.norm(dim=-1), rounding * scales.norm(dim=-1))
    whole = (heads.norm(dim=-1) / (norm + _TINY)).max()
    square = (finite * finite).sum()
    factor = (wrong * finite).sum().abs() / (square + _TINY)
    return Distance(element=float(element), tile=float(tile), whole=float(whole), factor=float(factor))


def _limit(plain: list[Distance], truth: Tensor, size: Tensor, eps: float, sums: float, few: float) -> Distance:
    """Twice the worst of plain torch, those left out that are not finite themselves, and what rounding alone costs."""
    sound = [each for each in plain if all(math.isfinite(x) for x in vars(each).values())]
    worst = {name: max((getattr(each, name) for each in sound), default=math.inf) for name in Distance.__annotations__}
    finite = truth.masked_fill(truth.isinf(), 0.0)
    ratio = float(size.norm() / (finite.norm() + _TINY))
    count = max(1, truth.numel())
    return Distance(
        element=2 * worst["element"] + sums + few,
        tile=2 * worst["tile"] + sums + few,
        whole=2 * worst["whole"] + eps + sums * min(ratio, 1 / eps),
        factor=2 * worst["factor"] + eps / 4 + sums * min(ratio, 1 / eps) / math.sqrt(count) + 4 * sums,
    )


def _by_head(x: Tensor) -> Tensor:
    """[heads, values of one head]; of lse, which is [B, H, S], too; of what has no heads, one row."""
    if x.ndim == 4:
        return x.permute(2, 0, 1, 3).flatten(1)
    return x.transpose(0, 1).flatten(1) if x.ndim == 3 else x.flatten()[None]


def _tiled(x: Tensor) -> Tensor:
    """[tiles, values of 16 rows of one head], the last one filled with zeros."""
    rows = {4: lambda: x.permute(0, 2, 1, 3), 3: lambda: x[..., None]}.get(
        x.ndim, lambda: x.flatten()[None, None, :, None]
    )()
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[2] % TILE))
    return rows.unflatten(2, (-1, TILE)).flatten(3).flatten(0, 2)


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
