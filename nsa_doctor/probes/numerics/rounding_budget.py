"""How far a subject in low precision is from float64, and how far rounding what it holds and hands on would take it."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.probes.internal import is_transformed, part_at, tree_leaves, tree_map
from nsa_doctor.probes.model.built_module import BuiltModule, built, require_finite
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.precision import precision_of
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.probes.tensors.widened import Widened
from nsa_doctor.subject.contract import Subject

_LENGTH_FOR_TRYING = 33
_NUM_RUNS = 2
_SHARE = 0.8  # of the tokens lie at or below the ratio that is reported: a choice that flips in a few says nothing


@dataclass(frozen=True)
class Twins:
    """The same values in two precisions: `wide` holds in float64 what `low` holds, rounded as it is.

    `rounding` is the lowest precision that values pass through in `low`: what it may be expected to keep.
    """

    low: BuiltModule
    wide: BuiltModule
    rounding: torch.dtype

    @property
    def dtype(self) -> torch.dtype:
        """What `low` is built in."""
        return getattr(torch, self.low.dtype)

    def input(self, length: int, prepare: Callable[[Tensor], Tensor]) -> Tensor:
        """Input that both can hold, in float64 (or token ids)."""
        x = self.wide.input(length)
        return prepare(x).to(self.dtype).double() if x.is_floating_point() else x


@dataclass(frozen=True)
class Stray:
    """How many budgets the error is, for all but a few tokens; `error` and `budget` are root mean squares there.

    `relative` is the error in units of the output's own size.
    """

    ratio: float
    error: float
    budget: float
    relative: float

    @property
    def evidence(self) -> dict[str, float | str]:
        """Its figures, and what kind of thing was seen."""
        kind = "strays" if math.isfinite(self.error) else "not finite"
        return {"error": self.error, "budget": self.budget, "kind": kind}

    def words(self, pair: Twins, where: str) -> str:
        """`float32 is off by 0.005 a token on ordinary input at S=64, 99 times what rounding … to float32 does`."""
        rounding = f"rounding every parameter and module output to {str(pair.rounding)[6:]}"
        if not math.isfinite(self.error):
            return f"{pair.low.dtype} is not finite {where}, where float64 is, and is after {rounding}"
        return (
            f"{pair.low.dtype} is off by {self.error:.3g} a token {where}, {self.ratio:.3g} times what {rounding} does"
        )


def twins(subject: Subject, dtype: str) -> Twins:
    """The subject built in `dtype`, and in float64 with the very same values; SubjectFailedError if it will not."""
    low = built(subject, dtype=dtype)
    wide = built(subject, dtype="float64", is_randomised=False)
    with torch.no_grad():
        for held, source in zip(_values(wide.module), _values(low.module), strict=True):
            if not torch.equal(held, source.to(held.dtype)):  # an expanded buffer cannot be written to
                held.copy_(source)
        length = min(_LENGTH_FOR_TRYING, subject.max_length)
        with Widened():
            wide(wide.input(length))
    return Twins(low, wide, precision_of(low, lambda: low(low.input(length))).dtype)  # a choice by rounded values too


def stray(pair: Twins, x: Tensor) -> Stray:
    """Compare the two on x; not finite in float64 raises NotComparableError."""
    with torch.no_grad():
        result = pair.low(_copied(x, pair.dtype)).double()
        with Widened():
            truth = require_finite(pair.wide(x), x.shape[1]).double()
        moved = []
        for generator in generators():
            with jittered(pair.wide.module, pair.rounding, generator), Widened():
                moved.append(pair.wide(jitter(x, pair.rounding, generator)).double())
    return _compared([result], [truth], [[each] for each in moved], pair.rounding)


def longest_stray(pair: Twins, lengths: Sequence[int], prepare: Callable[[Tensor], Tensor]) -> tuple[Tensor, Stray]:
    """Compare them at the first of those lengths that the subject takes; the input, and what came of it."""
    served = [length for length in lengths if length <= pair.low.subject.max_length] or [pair.low.subject.max_length]
    for length in served[:-1]:
        x = pair.input(length, prepare)
        try:
            return x, stray(pair, x)
        except SubjectFailedError:  # positions may be fewer than that
            continue
    x = pair.input(served[-1], prepare)
    return x, stray(pair, x)


def first_stray(pair: Twins, x: Tensor, is_beyond: Callable[[Stray], bool]) -> tuple[str, Stray] | None:
    """The module, innermost first, that strays on its own when it is handed exactly what float64 hands it."""
    calls: list[tuple[str, Any, Any]] = []
    with torch.no_grad(), _recorded(pair.wide.module, calls), Widened():
        pair.wide(x)
    for path, args, kwargs in calls:
        found = attempt(lambda: _replayed(pair, path, args, kwargs))  # noqa: B023
        if not isinstance(found, Caught) and found is not None and is_beyond(found):
            return path, found
    return None


def _replayed(pair: Twins, path: str, args: Any, kwargs: Any) -> Stray | None:
    low, wide = (part_at(each.module, path) for each in (pair.low, pair.wide))
    args, kwargs = tree_map(lambda leaf: _copied(_copied(leaf, pair.dtype), torch.float64), (args, kwargs))

    def call(module: nn.Module, change: Callable[[Any], Any]) -> list[Tensor]:
        seed_everything(pair.low.subject.seed)
        given, named = tree_map(change, (args, kwargs))
        output = module(*given, **named)
        return [leaf.double() for leaf in tree_leaves(output) if _is_floating(leaf) and leaf.ndim > 1]

    with torch.no_grad():
        with Widened():
            truth = call(wide, lambda leaf: _copied(leaf, torch.float64))
        result = call(low, lambda leaf: _copied(leaf, pair.dtype))
        moved = []
        for generator in generators():
            with jittered(wide, pair.rounding, generator), Widened():
                moved.append(call(wide, lambda leaf: jitter(leaf, pair.rounding, generator)))  # noqa: B023
    if not truth or not all(bool(isfinite(each).all()) for each in truth):
        return None
    return _compared(result, truth, moved, pair.rounding)


def _compared(
    result: Sequence[Tensor], truth: Sequence[Tensor], moved: Sequence[Sequence[Tensor]], dtype: torch.dtype
) -> Stray:
    size = torch.cat([_per_row(each) for each in truth])
    error = torch.cat([_per_row(one - other) for one, other in zip(result, truth, strict=True)])
    error = torch.where(isfinite(error), error, torch.inf)
    squares = [torch.cat([_per_row(a - b) for a, b in zip(each, truth, strict=True)]).square() for each in moved]
    own = torch.finfo(dtype).eps / 2 * size
    budget = (torch.stack(squares).mean(0) + own.square()).sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    budget = torch.maximum(budget, budget.median())
    ratio = error / budget
    at = int(ratio.argsort()[min(int(_SHARE * ratio.numel()), ratio.numel() - 1)])
    typical = float(size.square().mean().sqrt())
    relative = float(error[at]) / typical if typical else 0.0
    return Stray(float(ratio[at]), float(error[at]), float(budget[at]), relative)


def _per_row(tensor: Tensor) -> Tensor:
    return tensor.square().mean(-1).sqrt().flatten()


def generators() -> Iterator[torch.Generator]:
    return (torch.Generator().manual_seed(index) for index in range(_NUM_RUNS))


@contextmanager
def jittered(module: nn.Module, dtype: torch.dtype, generator: torch.Generator) -> Iterator[None]:
    """Move every parameter, and every module's output, by one rounding up or down."""
    kept = [(parameter, parameter.detach().clone()) for parameter in module.parameters()]
    change = lambda leaf: jitter(leaf, dtype, generator)  # noqa: E731
    handles = [
        each.register_forward_hook(lambda _module, _args, output: tree_map(change, output)) for each in module.modules()
    ]
    try:
        for parameter, value in kept:
            parameter.data.copy_(change(value))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, value in kept:
            parameter.data.copy_(value)


def jitter(leaf: Any, dtype: torch.dtype, generator: torch.Generator) -> Any:
    if not _is_floating(leaf) or is_transformed(leaf):  # vmap lets nobody draw
        return leaf
    sign = torch.randint(2, leaf.shape, generator=generator).to(leaf) * 2 - 1
    return leaf * (1 + torch.finfo(dtype).eps / 2 * sign)


@contextmanager
def _recorded(root: nn.Module, calls: list[tuple[str, Any, Any]]) -> Iterator[None]:
    """Keep what every module is called with, in the order the calls end: a part before the whole."""

    def recording(path: str) -> Callable[..., None]:
        def record(_module: nn.Module, args: Any, kwargs: Any, _output: Any) -> None:
            calls.append((path, *tree_map(lambda leaf: _copied(leaf, torch.float64), (args, kwargs))))

        return record

    handles = [
        module.register_forward_hook(recording(path), with_kwargs=True) for path, module in root.named_modules() if path
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _copied(leaf: Any, dtype: torch.dtype) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().to(dtype, copy=True) if leaf.is_floating_point() else leaf.clone()


def _values(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
