"""Hand-written autograd functions of one pass, each held against central differences of its own forward."""

from collections.abc import Callable, Iterator, Sequence
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


def wrong_function(built: BuiltModule, x: Tensor) -> type | None:
    """The first hand-written function of a pass over x whose backward is not the derivative of its forward.

    In float64 alone; None where there is none, and where central differences do not settle.
    """
    if built.dtype != "float64":
        return None
    applied = _applied(built, x)
    return next((kind for kind, args in applied[:_MOST_CALLS] if _is_wrong(kind, args)), None)


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


def _is_wrong(kind: Any, args: Sequence[Any]) -> bool:
    """Whether some argument's slope along a random direction is another than that of central differences."""
    answer = attempt(lambda: list(_slopes(kind, args)))
    if isinstance(answer, Caught):
        return False
    for exact, coarse, fine in answer:
        scale = max(abs(exact), abs(fine), 1e-12)
        if abs(coarse - fine) <= _ALLOWED / 4 * scale and not abs(exact - fine) <= _ALLOWED * scale:
            return True
    return False


def _slopes(kind: Any, args: Sequence[Any]) -> Iterator[tuple[float, float, float]]:
    """For each argument that is differentiated: autograd's slope, and that of a coarse and of a fine step."""
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
        yield exact, central[0], central[1]


def _outputs(kind: Any, args: Sequence[Any]) -> list[Tensor]:
    output = kind.apply(*args)
    listed = output if isinstance(output, (tuple, list)) else [output]
    return [each for each in listed if isinstance(each, Tensor) and each.is_floating_point()]


def _is_followed(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad
