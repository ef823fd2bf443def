"""Activations whose definition is known exactly: whether what a part computes is any of the forms that bear its name.

SiLU and Swish (arXiv 1710.05941), GELU (1606.08415), Mish (1908.08681), squared ReLU (2109.08668), and the gated linear
units of arXiv 2002.05202. A constant factor is left free, for some scale what comes out; so is the slope of a swish.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

_Curve = Callable[[Tensor], Tensor]
_SIGMOID_OF_GELU = 1.702
_REACH = 5.0  # far enough to tell curves apart, and within what some of them cut off
_STEPS = 20  # zero is none of them
_NEAR, _MIDDLE, _EDGE = 0.01, 1.6, 1e-9
_STEEPEST = 1000.0
_GATED_REACH = 2.5
_TOLERANCE = 0.005  # of a curve: a polynomial in place of a function of torch's is as near
_BY_ROUNDING = 4.0

_gelus: Sequence[_Curve] = (
    functional.gelu,
    lambda x: functional.gelu(x, approximate="tanh"),
    lambda x: x * torch.sigmoid(_SIGMOID_OF_GELU * x),
)
_squares: Sequence[_Curve] = (lambda x: functional.relu(x).square(), lambda x: x * x.abs())
_CURVES: dict[str, Sequence[_Curve]] = {
    "swish": (functional.silu, functional.hardswish),
    "gelu": _gelus,
    "mish": (functional.mish,),
    "squaredrelu": _squares,
    "relu2": (*_squares, lambda x: x.clamp(0, 2), functional.relu),  # "2" may be a limit or a number
}
_GATES: dict[str, Sequence[_Curve]] = {
    "glu": (torch.sigmoid, functional.silu, *_gelus, functional.relu, functional.hardsigmoid),
    # These two are often named for each other.
    "swiglu": (functional.silu, *_gelus, functional.hardswish),
    "geglu": (*_gelus, functional.silu),
    "reglu": (functional.relu,),
}
CURVES, GATES = frozenset(_CURVES), frozenset(_GATES)
DEFINITIONS = {
    "swish": "x * sigmoid(x)",
    "gelu": "x * Phi(x), or an approximation of it",
    "mish": "x * tanh(softplus(x))",
    "squaredrelu": "relu(x) squared",
    "relu2": "relu(x) squared",
    "glu": "one half of its input times a gate, the sigmoid of the other",
    "swiglu": "one half of its input times SiLU of the other",
    "geglu": "one half of its input times GELU of the other",
    "reglu": "one half of its input times ReLU of the other",
}


def departs_from_curve(operation: str, alone: Callable[[Tensor], Tensor], like: Tensor, is_adjustable: bool) -> str:
    """What shows that the values it gives are none of that activation; empty where they may be.

    It is asked with values of the shape and dtype of `like`. One that `is_adjustable` holds numbers of its own.
    """
    values = torch.linspace(-_REACH, _REACH, _STEPS, dtype=torch.float64)
    at = torch.arange(like.numel()).reshape(like.shape)
    given = [values[(at + step) % _STEPS].to(like) for step in range(_STEPS)]
    answers = torch.stack([alone(each).double() for each in given])
    x = torch.stack(given).double()
    if not bool(torch.isfinite(answers).all()):
        return ""
    slope = alone(torch.full_like(like, _NEAR)).double(), alone(torch.full_like(like, -_NEAR)).double()
    slack = _TOLERANCE + _BY_ROUNDING * torch.finfo(like.dtype).eps
    for expected in _expected(operation, x, answers, slope, is_adjustable):
        off = (answers - expected).abs() - slack * (1 + expected.abs())
        if bool((off <= 0).all()):
            return ""
    plain = _CURVES[operation][0](x)
    worst = int((answers - plain).abs().argmax())
    came, due, where = (float(each.flatten()[worst]) for each in (answers, plain, x))
    return f"{came:.4g} for {where:g}, where {DEFINITIONS[operation]} is {due:.4g}"


def _expected(
    operation: str, x: Tensor, answers: Tensor, slope: tuple[Tensor, Tensor], is_adjustable: bool
) -> Iterator[Tensor]:
    """What it has to give, in each form."""
    for curve in _CURVES[operation]:
        plain = curve(x)
        yield plain
        yield _factor(plain, answers, (0,)) * plain
        yield _factor(plain, answers, tuple(range(x.ndim))) * plain
    if operation == "swish":
        factor = (slope[0] - slope[1]) / _NEAR  # sigmoids at a number and its opposite add up to one
        steepness = (answers / (factor * x)).logit(_EDGE) / x
        steepness = torch.where((x.abs() > _NEAR) & (x.abs() < _MIDDLE), steepness, math.nan).nanmedian(0).values
        if bool((factor > 0).all()) and (is_adjustable or bool((steepness > 0).all())):
            yield factor * x * torch.sigmoid(steepness * x)
    if operation == "mish":  # softplus may have a steepness of its own; at zero it is log(2) of it
        steepness = math.log(2) / torch.atanh(((slope[0] - slope[1]) / (2 * _NEAR)).clamp(_EDGE, 1 - _EDGE))
        if bool((steepness < _STEEPEST).all()):
            yield x * torch.tanh(functional.softplus(steepness * x) / steepness)


def _factor(plain: Tensor, answers: Tensor, over: tuple[int, ...]) -> Tensor:
    """The positive factor that brings one nearest to the other."""
    factor = (plain * answers).sum(over, keepdim=True) / plain.square().sum(over, keepdim=True)
    return torch.where(factor > 0, factor, math.nan)


def departs_from_gate(operation: str, answer: Tensor, halves: Sequence[tuple[Tensor, Tensor]]) -> str:
    """What shows that an answer is no product of one tensor and a gate made of the other, for any pair they may be."""
    answer = answer.double()
    nearest = math.inf
    size = float(answer.abs().max())
    if not math.isfinite(size) or not size:
        return ""
    for pair, is_swapped in product(halves, (False, True)):
        value, gate = (each.double() for each in (reversed(pair) if is_swapped else pair))
        for curve, offset in product(_GATES[operation], (0.0, 1.0)):
            plain = (value + offset) * curve(gate)
            expected = _factor(plain, answer, tuple(range(plain.ndim))) * plain
            off = float((answer - expected).abs().max()) / size
            nearest = min(nearest, off if math.isfinite(off) else math.inf)
    if nearest <= _TOLERANCE + _BY_ROUNDING * torch.finfo(halves[0][0].dtype).eps:
        return ""
    away = f"{nearest:.2g} of its largest value" if math.isfinite(nearest) else "more than its largest value"
    return f"it is {away} away from {DEFINITIONS[operation]}, whichever half is the gate"


def halves_of(x: Tensor, answer: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The halves of a tensor of which the answer has the shape: one behind the other, and in turns."""
    if x.ndim != answer.ndim:
        return []
    axes = [axis for axis in range(x.ndim) if x.shape[axis] != answer.shape[axis]]
    if len(axes) != 1 or x.shape[axes[0]] != 2 * answer.shape[axes[0]]:
        return []
    (axis,) = axes
    first, second = x.chunk(2, axis)
    turns = x.unflatten(axis, (-1, 2))
    return [(first, second), (turns.select(axis + 1, 0), turns.select(axis + 1, 1))]


def gated_values(like: Tensor, seed: int) -> Tensor:
    """Values of that shape and dtype that no unit cuts off."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(like.shape, generator=generator, dtype=torch.float64)
    return (_GATED_REACH * (2 * drawn - 1)).to(like)
