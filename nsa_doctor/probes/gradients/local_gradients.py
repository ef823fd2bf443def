"""Hand-written autograd functions of one pass, each held against central differences of its own forward."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.internal import functions_applied_by
from nsa_doctor.probes.model.built_module import BuiltModule

_MOST_CALLS = 24
_STEPS = (1e-5, 1e-6)  # in float64: what both agree on is the derivative
_ALLOWED = 1e-4  # relative to the larger of the two slopes

_Applied = tuple[type, tuple[Any, ...]]


@dataclass(frozen=True)
class Judged:
    """A hand-written function, and the arguments of its forward whose gradients are wrong, and right, in some call."""

    function: type
    wrong: frozenset[int]
    right: frozenset[int]


def wrong_function(built: BuiltModule, x: Tensor) -> Judged | None:
    """The first hand-written function of a pass over x whose backward is not the derivative of its forward.

    In float64 alone; None where there is none, and where central differences do not settle.
    """
    applied = _applied(built, x) if built.dtype == "float64" else []
    kinds = dict.fromkeys(kind for kind, _ in applied[:_MOST_CALLS])
    return next((each for each in (_judged(kind, applied) for kind in kinds) if each.wrong), None)


def judged(built: BuiltModule, x: Tensor, kind: type) -> Judged:
    """The same of one function, whether it is wrong or not."""
    return _judged(kind, _applied(built, x) if built.dtype == "float64" else [])


def _judged(kind: type, applied: Sequence[_Applied]) -> Judged:
    wrong, right = set[int](), set[int]()
    for args in [args for each, args in applied[:_MOST_CALLS] if each is kind]:
        slopes = attempt(lambda args=args: list(_slopes(kind, args)))
        for number, *three in [] if isinstance(slopes, Caught) else slopes:
            is_right = _is_right(*three)
            wrong |= {number} if is_right is False else set()
            right |= {number} if is_right and three[0] else set()
    return Judged(kind, frozenset(wrong), frozenset(right - wrong))


def _applied(built: BuiltModule, x: Tensor) -> list[_Applied]:
    """The hand-written functions of one pass, with what each was given."""
    found: list[_Applied] = []

    def apply(kind: type, call: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        if not kind.__module__.startswith("torch."):
            found.append(
                (kind, tuple(each.detach().clone().requires_grad_() if _is_followed(each) else each for each in args))
            )
        return call()

    with functions_applied_by(apply), torch.enable_grad():
        built(x.clone().requires_grad_(x.is_floating_point()))
    return found


def _is_right(exact: float, coarse: float, fine: float) -> bool | None:
    """Whether autograd's slope is that of central differences; None where these do not settle."""
    scale = max(abs(exact), abs(fine), 1e-12)
    if not abs(coarse - fine) <= _ALLOWED / 4 * scale:
        return None
    return abs(exact - fine) <= _ALLOWED * scale


def _slopes(kind: Any, args: Sequence[Any]) -> Iterator[tuple[int, float, float, float]]:
    """For each argument that is differentiated: its number, autograd's slope, that of a coarse and of a fine step."""
    generator = torch.Generator().manual_seed(0)
    moved = [number for number, each in enumerate(args) if _is_followed(each)]
    leaves = {number: args[number].detach().clone().requires_grad_() for number in moved}
    outputs = _outputs(kind, [leaves.get(number, each) for number, each in enumerate(args)])
    cotangents = [torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in outputs]
    pairs = [(out, cotangent) for out, cotangent in zip(outputs, cotangents, strict=True) if out.requires_grad]
    given = torch.autograd.grad(
        [out for out, _ in pairs], list(leaves.values()), [c for _, c in pairs], allow_unused=True
    )

    def value(number: int, direction: Tensor, step: float) -> float:
        with torch.no_grad():
            changed = [each + step * direction if index == number else each for index, each in enumerate(args)]
            outs = _outputs(kind, changed)
            return sum(float((out * cotangent).sum()) for out, cotangent in zip(outs, cotangents, strict=True))

    for number, gradient in zip(moved, given, strict=True):
        direction = torch.randn(args[number].shape, generator=generator, dtype=args[number].dtype)
        exact = 0.0 if gradient is None else float((gradient * direction).sum())
        central = [(value(number, direction, step) - value(number, direction, -step)) / (2 * step) for step in _STEPS]
        yield number, exact, central[0], central[1]


def _outputs(kind: Any, args: Sequence[Any]) -> list[Tensor]:
    output = kind.apply(*args)
    listed = output if isinstance(output, (tuple, list)) else [output]
    return [each for each in listed if isinstance(each, Tensor) and each.is_floating_point()]


def _is_followed(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad
