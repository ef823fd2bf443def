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
_WITHIN = 2.5  # beyond which some cut values off, and no two of these curves part there alone
_DENSE, _FEWEST_OTHERS = 64, 0.75  # fewer other answers than that to values near each other are rounded
_STEPS = 20  # zero is none of them
_NEAR, _MIDDLE, _EDGE = 0.01, 1.6, 1e-9
_STEEPEST = 1000.0
_GATED_REACH, _PLAIN, _FEWEST_NORMED = 2.5, 0.2, 8
_OF_SIGMOIDS = ("glu", "swiglu")
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
GATES = frozenset(_GATES)
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


def departs_from_curve(
    operation: str, alone: Callable[[Tensor], Tensor], like: Tensor, is_adjustable: bool, is_learnt: bool
) -> str:
    """What shows that the values it gives are none of that activation; empty where they may be.

    It is asked with values of the shape and dtype of `like`. One that `is_adjustable` has numbers of its own, and
    one that `is_learnt` holds them.
    """
    x, answers = _asked(alone, like, _WITHIN)
    if not bool(torch.isfinite(answers).all()):
        return ""
    slope = alone(torch.full_like(like, _NEAR)).double(), alone(torch.full_like(like, -_NEAR)).double()
    slack = _TOLERANCE + _BY_ROUNDING * torch.finfo(like.dtype).eps
    for expected in _expected(operation, x, answers, slope, is_adjustable, is_learnt):
        off = (answers - expected).abs() - slack * (1 + expected.abs())
        if bool((off <= 0).all()):
            return ""
    if _rounds(alone, like):
        return ""
    x, answers = _asked(alone, like, _REACH)
    plain = _CURVES[operation][0](x)
    worst = int((answers - plain).abs().argmax())
    came, due, where = (float(each.flatten()[worst]) for each in (answers, plain, x))
    return f"{came:.4g} for {where:g}, where {DEFINITIONS[operation]} is {due:.4g}"


def _asked(alone: Callable[[Tensor], Tensor], like: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """Values up to that far, each at each place, and what it makes of them."""
    values = torch.linspace(-reach, reach, _STEPS, dtype=torch.float64)
    at = torch.arange(like.numel()).reshape(like.shape)
    given = [values[(at + step) % _STEPS].to(like) for step in range(_STEPS)]
    return torch.stack(given).double(), torch.stack([alone(each).double() for each in given])


def _rounds(alone: Callable[[Tensor], Tensor], like: Tensor) -> bool:
    """Whether it gives one answer for several values near each other, as those that are quantised do."""
    values = torch.linspace(1, 2, _DENSE, dtype=torch.float64).to(like)
    answers = [float(alone(torch.full_like(like, float(each))).flatten()[0]) for each in values]
    return len(set(answers)) < _FEWEST_OTHERS * len(set(values.tolist()))


def _expected(
    operation: str, x: Tensor, answers: Tensor, slope: tuple[Tensor, Tensor], is_adjustable: bool, is_learnt: bool
) -> Iterator[Tensor]:
    """What it has to give, in each form."""
    for curve in _CURVES[operation]:
        plain = curve(x)
        yield plain
        yield _factor(plain, answers, (0,)) * plain
        yield _factor(plain, answers, tuple(range(x.ndim))) * plain
        if is_adjustable:
            yield _shifted(plain, answers, tuple(range(x.ndim)))
    if operation == "swish":
        factor = (slope[0] - slope[1]) / _NEAR  # sigmoids at a number and its opposite add up to one
        steepness = (answers / (factor * x)).logit(_EDGE) / x
        steepness = torch.where((x.abs() > _NEAR) & (x.abs() < _MIDDLE), steepness, math.nan).nanmedian(0).values
        if bool((factor > 0).all()) and (is_learnt or bool((steepness > 0).all())):
            yield factor * x * torch.sigmoid(steepness * x)
    if operation == "mish":  # softplus may have a steepness of its own; at zero it is log(2) of it
        steepness = math.log(2) / torch.atanh(((slope[0] - slope[1]) / (2 * _NEAR)).clamp(_EDGE, 1 - _EDGE))
        if bool((steepness < _STEEPEST).all()):
            yield x * torch.tanh(functional.softplus(steepness * x) / steepness)


def _shifted(plain: Tensor, answers: Tensor, over: tuple[int, ...]) -> Tensor:
    """What a positive factor and a constant that is added bring nearest to the other."""
    centre = plain.mean(over, keepdim=True), answers.mean(over, keepdim=True)
    return _factor(plain - centre[0], answers - centre[1], over) * (plain - centre[0]) + centre[1]


def _factor(plain: Tensor, answers: Tensor, over: tuple[int, ...]) -> Tensor:
    """The positive factor that brings one nearest to the other."""
    factor = (plain * answers).sum(over, keepdim=True) / plain.square().sum(over, keepdim=True)
    return torch.where(factor > 0, factor, math.nan)


def departs_from_gate(
    operation: str, answer: Tensor, halves: Sequence[tuple[Tensor, Tensor]], is_adjustable: bool
) -> str:
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
            forms = [_factor(plain, answer, tuple(range(plain.ndim))) * plain]
            if plain.shape[-1] >= _FEWEST_NORMED:
                forms += [_shifted(plain, answer, (-1,)), _factor(plain, answer, (-1,)) * plain]  # normalised behind
            for expected in forms:
                off = float((answer - expected).abs().max()) / size
                nearest = min(nearest, off if math.isfinite(off) else math.inf)
        if is_adjustable and operation in _OF_SIGMOIDS:
            for offset, factor in product((0.0, 1.0), (torch.ones_like(gate), gate)):
                expected = _of_any_sigmoid((value + offset) * factor, gate, answer)
                off = float((answer - expected).abs().max()) / size
                nearest = min(nearest, off if math.isfinite(off) else math.inf)
    if nearest <= _TOLERANCE + _BY_ROUNDING * torch.finfo(halves[0][0].dtype).eps:
        return ""
    away = f"{nearest:.2g} of its largest value" if math.isfinite(nearest) else "more than its largest value"
    return f"it is {away} away from {DEFINITIONS[operation]}, whichever half is the gate"


def _of_any_sigmoid(value: Tensor, gate: Tensor, answer: Tensor) -> Tensor:
    """The product of the value and a sigmoid of the gate, of the slope and the shift that bring it nearest."""
    share = answer / value
    is_plain = (value.abs() > _PLAIN) & (share > _EDGE) & (share < 1 - _EDGE)
    if int(is_plain.sum()) < _FEWEST_NORMED:
        return torch.full_like(answer, math.nan)
    logits, at = share[is_plain].logit(), gate[is_plain]
    centred = at - at.mean()
    slope = (centred * logits).sum() / centred.square().sum()
    expected = value * torch.sigmoid(slope * (gate - at.mean()) + logits.mean())
    return expected if float(slope) > 0 else torch.full_like(answer, math.nan)


def halves_of(x: Tensor, answer: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The halves of a tensor of which the answer has the shape: one behind the other, in turns, and any between."""
    if x.ndim != answer.ndim:
        return []
    axes = [axis for axis in range(x.ndim) if x.shape[axis] != answer.shape[axis]]
    if len(axes) != 1 or x.shape[axes[0]] != 2 * answer.shape[axes[0]]:
        return []
    (axis,) = axes
    size = answer.shape[axis]
    counts = [each for each in range(1, size + 1) if size % each == 0]  # of ranks, each with its halves side by side
    pairs = (x.unflatten(axis, (each, 2, -1)).unbind(axis + 1) for each in counts)
    return [(first.flatten(axis, axis + 1), second.flatten(axis, axis + 1)) for first, second in pairs]


def gated_values(like: Tensor, seed: int) -> Tensor:
    """Values of that shape and dtype that no unit cuts off."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(like.shape, generator=generator, dtype=torch.float64)
    return (_GATED_REACH * (2 * drawn - 1)).to(like)
