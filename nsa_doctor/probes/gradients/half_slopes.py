"""Gradients of a module that runs in half precision alone, beside what its output does along them.

Between two points the output changes by the integral of its gradient; with gradients at both ends and in the middle
(Simpson) it is known to the fourth power of the step, and that values are rounded does not matter: their difference is
exact. Rows of a tensor are moved in parts, since those of queries, keys and values often lie in one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.internal import function_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.tensors.finite import isfinite

INPUT = "the input"
_STEPS = (0.05, 0.1, 0.2, 0.4)
_PARTS = 6
_WEIGHING_STEP = 0.1
_SMALLEST = 1e-300
_TINY = 1e-30
_MOST_TOLERANCE = 0.3  # beyond it, nothing is to be seen
_LEAST_TOLERANCE = 0.01
_ROUNDINGS = 2.0  # of each gradient: on its way and at its end
_NOISES = 25.0  # what is rounded on the way leans to one side where a step is near a rounding
_ALIKE = 0.5
_SMALL_STEP = 0.02
_MOST_NODES = 20_000

Index = tuple[slice, ...]


@dataclass(frozen=True, kw_only=True)
class HalfSlope:
    """What the gradient of some rows of one tensor says of a step along itself, and what the outputs do.

    noise: how much of that rounding of the outputs hides. curvature: how far Simpson's rule is from the trapezoid's.
    """

    name: str
    part: str
    predicted: float
    seen: float
    noise: float
    curvature: float
    eps: float

    @property
    def deviation(self) -> float:
        """How far the gradient is from what is seen, as a share of the larger one."""
        return (self.predicted - self.seen) / max(abs(self.predicted), abs(self.seen), _SMALLEST)

    @property
    def tolerance(self) -> float:
        """What rounding and curvature may make."""
        least = max(_LEAST_TOLERANCE, _ROUNDINGS * self.eps)
        return least + _NOISES * self.noise + 2 * self.curvature**2  # Simpson's error

    @property
    def is_certain(self) -> bool:
        """Whether anything is to be seen."""
        return self.tolerance < _MOST_TOLERANCE

    @property
    def is_wrong(self) -> bool:
        """Whether they disagree by more than rounding and curvature make."""
        return self.is_certain and not abs(self.deviation) <= self.tolerance


def half_slopes(
    made: BuiltModule, x: Tensor, most: int, only: tuple[str, str] | None = None
) -> Iterator[list[HalfSlope]]:
    """By parts of the input and of the largest parameters, `most` of them or one alone: those steps that show enough.

    Outputs are weighed by how they change when the part is moved at random: what it changes adds up, rounding does not.
    """
    values = _values(made, x)
    chance = torch.Generator().manual_seed(made.subject.seed + 17)
    first = _Pass.of(made, values)
    kept = sorted((name for name in first.gradients if name != INPUT), key=lambda name: -values[name].numel())[:most]
    try:
        for name in (*([INPUT] if INPUT in first.gradients else []), *kept):
            for part, index in _parts(name, values[name]):
                if only in (None, (name, part)):
                    weights = _change(made, values, name, index, chance)
                    middle = _Pass.of(made, values, weights)
                    gradient = middle.gradients.get(name)
                    if gradient is None or not bool(gradient[index].any()):
                        continue
                    towards = torch.zeros_like(gradient)
                    towards[index] = gradient[index] * (values[name][index].double().norm() / gradient[index].norm())
                    found = [_slope(made, values, middle, (name, part), towards * step) for step in _STEPS]
                    yield [slope for slope in found if slope is not None and slope.is_certain]
    finally:  # whoever takes the first alone too leaves the module as it was
        _set(made, values)


def _change(
    made: BuiltModule, values: Mapping[str, Tensor], name: str, index: Index, chance: torch.Generator
) -> Tensor:
    """How outputs change when a part is moved at random, scaled to be one on the average."""
    value = values[name]
    way = torch.zeros_like(value)
    way[index] = torch.randn(value[index].shape, generator=chance).to(value) * value[index].abs().mean()
    outputs = []
    for step in (-_WEIGHING_STEP, _WEIGHING_STEP):
        moved = {**values, name: value + step * way}
        _set(made, moved)
        with torch.no_grad():
            outputs.append(made(moved[INPUT]))
    change = (outputs[1] - outputs[0]).float()
    return (change / (change.square().mean().sqrt() + _TINY)).to(outputs[0].dtype)


def dtype_of(made: BuiltModule) -> torch.dtype:
    """The precision that it computes in."""
    dtype: torch.dtype = getattr(torch, made.dtype)
    return dtype


def largest_jump(made: BuiltModule, x: Tensor) -> float:
    """How far any row of the output is off the line between its neighbours a small step away, in its own roundings.

    A smooth module's are off by rounding; where a choice flips in between, its row is off by what was chosen.
    """
    values = _values(made, x)
    chance = torch.Generator().manual_seed(made.subject.seed + 7)
    outputs = []
    ways = {name: torch.randn(each.shape, generator=chance).to(each) for name, each in values.items() if _moves(each)}
    for step in (-_SMALL_STEP, 0.0, _SMALL_STEP):
        moved = {name: each + step * each * ways[name] if name in ways else each for name, each in values.items()}
        _set(made, moved)
        with torch.no_grad():
            outputs.append(made(moved[INPUT]).double().flatten(2))
    _set(made, values)
    low, middle, high = outputs
    eps = torch.finfo(dtype_of(made)).eps
    off = (low + high - 2 * middle).norm(dim=-1) / (middle.norm(dim=-1) * eps + _SMALLEST)
    return float(off.max())


def has_own_backward(made: BuiltModule, x: Tensor) -> bool:
    """Whether a backward that is written by hand is part of the graph."""
    with torch.enable_grad():
        waiting: list[Any] = [made(x).grad_fn]
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if function_of(node) is not None:
            return True
        waiting += [following for following, _ in node.next_functions]
    return False


def _moves(value: Tensor) -> bool:
    return value.is_floating_point()


def are_alike(slopes: Sequence[HalfSlope]) -> bool:
    """Whether the two steps that show most are wrong, to the same side and by about as much."""
    best = sorted(slopes, key=lambda slope: slope.tolerance)[:2]
    if len(best) < 2:
        return False
    one, other = (slope.deviation for slope in best)
    is_one_side = (one > 0) is (other > 0)
    least, largest = sorted((abs(one), abs(other)))
    return all(slope.is_wrong for slope in best) and is_one_side and least >= _ALIKE * largest


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """What one forward and backward pass gives, in float64: weighed outputs and gradients by name."""

    weighed: Tensor
    gradients: Mapping[str, Tensor]
    weights: Tensor

    @classmethod
    def of(cls, made: BuiltModule, values: Mapping[str, Tensor], weights: Tensor | None = None) -> "_Pass":
        """With these values in place of the module's own; outputs are weighed at random where nothing is said."""
        parameters = _set(made, values)
        x = values[INPUT].clone().requires_grad_(values[INPUT].is_floating_point())
        with torch.enable_grad():
            output = made.call(x.clone())
            leaves = {**({INPUT: x} if x.requires_grad else {}), **parameters}
            weights = make_cotangent(output, made.subject.seed) if weights is None else weights
            back = lambda: torch.autograd.grad(output, list(leaves.values()), weights, allow_unused=True)  # noqa: E731
            given = ask("backward", back, made.module, output)
        gradients = {name: each.double() for name, each in zip(leaves, given, strict=True) if each is not None}
        return cls(weighed=output.detach().double() * weights.double(), gradients=gradients, weights=weights)

    @property
    def is_finite(self) -> bool:
        """Whether everything is."""
        return all(bool(isfinite(each).all()) for each in (self.weighed, *self.gradients.values()))


def _values(made: BuiltModule, x: Tensor) -> dict[str, Tensor]:
    """Input and parameters that are trained, as they are now."""
    parameters = {name: each.detach().clone() for name, each in made.module.named_parameters() if each.requires_grad}
    return {INPUT: x, **parameters}


def _set(made: BuiltModule, values: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    """The parameters among the values, which they hold from now on."""
    parameters = {name: each for name, each in made.module.named_parameters() if name in values}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
    return parameters


def _parts(name: str, value: Tensor) -> Iterator[tuple[str, Index]]:
    """Positions of the input, the last one by itself too, or rows of a parameter; all of what has one side."""
    if name == INPUT:
        yield f"position {value.shape[1] - 1}", (slice(None), slice(value.shape[1] - 1, None))
    before: Index = (slice(None),) if name == INPUT else ()
    noun, count = ("positions", value.shape[1]) if name == INPUT else ("rows", value.shape[0])
    if value.ndim < 2 or count < 2:
        yield "all of it", ()
        return
    size = -(-count // _PARTS)
    for start in range(0, count, size):
        stop = min(count, start + size)
        yield f"{noun} {start} to {stop - 1}", (*before, slice(start, stop))


def _slope(
    made: BuiltModule, values: Mapping[str, Tensor], middle: _Pass, named: tuple[str, str], step: Tensor
) -> HalfSlope | None:
    name, part = named
    value, dtype = values[name].double(), values[name].dtype
    ends = [{**values, name: (value + sign * step).to(dtype)} for sign in (-1.0, 1.0)]
    low, high = (_Pass.of(made, each, middle.weights) for each in ends)
    if not (low.is_finite and high.is_finite and name in low.gradients and name in high.gradients):
        return None
    moved = ends[1][name].double() - ends[0][name].double()
    by_pass = [float((each.gradients[name] * moved).sum()) for each in (low, middle, high)]
    predicted, rough = (by_pass[0] + 4 * by_pass[1] + by_pass[2]) / 6, (by_pass[0] + by_pass[2]) / 2
    seen = float((high.weighed - low.weighed).sum())
    eps = torch.finfo(dtype).eps
    noise = eps * float(torch.sqrt((low.weighed.square() + high.weighed.square()).sum() / 12))
    size = max(abs(seen), abs(predicted), _SMALLEST)
    return HalfSlope(
        name=name,
        part=part,
        predicted=predicted,
        seen=seen,
        noise=noise / size,
        curvature=abs(predicted - rough) / size,
        eps=eps,
    )
