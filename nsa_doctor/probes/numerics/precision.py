"""In which precision a subject really computes, and how far rounding alone moves its output."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name

_NUM_PERTURBATIONS = 3
_SAFETY = 8.0
_NUDGE = 4
_ADDING = frozenset({"add_", "index_add_", "scatter_add_", "sub_"})
_STORING = frozenset({"copy_", "diagonal_scatter", "select_scatter", "slice_scatter"})
_SOFTMAX = frozenset({"softmax", "log_softmax", "safe_softmax"})
_BETWEEN = frozenset({"add", "add_", "clone", "div", "div_", "masked_fill", "masked_fill_", "mul", "mul_", "view"})
_EXACT = frozenset(  # what gives values that were there, or their opposite
    (
        *("abs", "amax", "amin", "cat", "clamp", "clamp_min", "clone", "constant_pad_nd", "flip", "gather", "index"),
        *("index_select", "masked_fill", "max", "maximum", "min", "minimum", "neg", "relu", "repeat", "roll", "sort"),
        *("stack", "topk", "tril", "triu", "where"),
    )
)
_SUMS = frozenset(
    (
        "add",
        "cumprod",
        "cumsum",
        "index_add",
        "linalg_vector_norm",
        "mean",
        "nansum",
        "prod",
        "scatter_add",
        "sub",
        "sum",
    )
)


@dataclass(frozen=True)
class Precision:
    """The lowest precision values pass through on their way, as its unit roundoff, and where they are lowered.

    `operation` is what lowers them; "" where nothing does.
    """

    dtype: torch.dtype
    place: Place
    operation: str = ""

    @property
    def is_of_a_sum(self) -> bool:
        """Whether what lowers them adds up values that are finer than their sum."""
        return self.operation.rstrip("_") in _SUMS

    @property
    def is_of_a_softmax(self) -> bool:
        """Whether they are lowered to half precision for a softmax, which is taken of what the cast gives."""
        return self.operation in _SOFTMAX and self.dtype.itemsize < 4

    @property
    def eps(self) -> float:
        """Distance from 1 to the next number."""
        return float(torch.finfo(self.dtype).eps)


def effective_precision(built: BuiltModule, x: Tensor) -> Precision:
    """Watch a pass of x [B, S, ...] for casts to a narrower floating dtype that bear on its output; else its own dtype.

    Gradients are recorded as grad mode says. What is rounded for a cache that the pass hands out, or for a choice,
    leaves the output as fine as it was.
    """
    without_effect = frozenset[torch.dtype]()
    while True:
        found, output = _watched(built, lambda: built(x), without_effect)
        if found.dtype == getattr(torch, built.dtype):
            return found
        with _Nudge(found.dtype):
            other = built(x)
        if not torch.equal(output, other):
            return found
        without_effect |= {found.dtype}


def finest_precision(built: BuiltModule, x: Tensor) -> Precision:
    """The finest effective precision of passes that are like one another: what two of them may differ by.

    Of x [B, S, ...] with and without gradients, of another number of rows, and of one token less. One that is rounded
    in some of them alone gives another result there, which no comparison may take for rounding.
    """
    with torch.no_grad():
        found = effective_precision(built, x)
    if found.dtype == getattr(torch, built.dtype):
        return found
    for other, grad in _like(built, x):
        try:
            with unobserved(), torch.set_grad_enabled(grad):
                found = min(found, effective_precision(built, other), key=lambda each: each.eps)
        except SubjectFailedError:  # which the checks that are about such calls tell of
            continue
    return found


def _like(built: BuiltModule, x: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """Inputs of such passes, and whether gradients are recorded."""
    yield x, True
    yield x[:1] if len(x) > 1 else torch.cat((x, built.input(x.shape[1], seed=built.subject.seed + 1))), False
    if x.shape[1] > 1:
        yield x[:, :-1], False


def precision_of(built: BuiltModule, run: Callable[[], object]) -> Precision:
    """The lowest of any run of the module, whatever it bears on."""
    with torch.no_grad():
        return _watched(built, run)[0]


def _watched(
    built: BuiltModule, run: Callable[[], Any], without_effect: frozenset[torch.dtype] = frozenset()
) -> tuple[Precision, Any]:
    places = Places(FrameFilter(built.subject.packages))
    places.know(built.module)
    watcher = _CastWatcher(places, getattr(torch, built.dtype), without_effect)
    with watcher, places.watching():
        result = run()
    return Precision(watcher.narrowest, watcher.place, watcher.operation), result


def noise_floor(built: BuiltModule, x: Tensor, eps: float) -> Tensor:
    """How far each token's output [B, S] moves when every parameter and embedding moves by about one rounding.

    Where a hard choice is nearly tied the floor is as high as the choice matters: compare such tokens with it.
    """
    with torch.no_grad():
        base = built(x).double()
        floor = torch.zeros(base.shape[:2], dtype=torch.float64, device=base.device)
        for index in range(_NUM_PERTURBATIONS):
            moved = _perturbed(built, x, eps, index).double()
            floor = torch.maximum(floor, (moved - base).abs().flatten(2).amax(-1))
    return _SAFETY * floor + least_noise(base, eps)


def least_noise(output: Tensor, eps: float) -> Tensor:
    """What `noise_floor` is at least for this output [B, S, ...]: the rounding of its own values, [B, S]."""
    return _SAFETY * eps * output.double().abs().flatten(2).amax(-1)


class _CastWatcher(DispatchWatcher):
    def __init__(self, places: Places, own: torch.dtype, without_effect: frozenset[torch.dtype]) -> None:
        super().__init__()
        self.narrowest, self.place, self.operation = own, Place(), ""
        self._places, self._without_effect = places, without_effect
        self._lowered: Tensor | None = None  # by the cast that `place` names

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; a result narrower than its floating-point input lowers the precision."""
        result = func(*args, **kwargs)
        narrow = _narrowed(func, args, result)
        is_new = narrow is not None and narrow not in self._without_effect
        if narrow is not None and is_new and torch.finfo(narrow).eps > torch.finfo(self.narrowest).eps:
            self.narrowest, self.place, self.operation = narrow, self._places.here()[0], operation_name(func)
            self._lowered = result
        elif self._lowered is not None and args and args[0] is self._lowered:
            name = operation_name(func)
            self.operation = name if name in _SOFTMAX else self.operation
            self._lowered = result if name in _BETWEEN else self._lowered
        return result


class _Nudge(DispatchWatcher):
    """Moves what is cast to a narrower dtype, and what is computed of it there, by a few of its roundings."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._cast: dict[int, Tensor] = {}  # and what came of it in that dtype

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        result = func(*args, **kwargs)
        if isinstance(result, (tuple, list)) and any(id(each) in self._cast for each in args):
            self._cast |= {id(each): each for each in result if isinstance(each, Tensor)}
        if not isinstance(result, Tensor) or not _is_rounded(result) or result.dtype.to_real() != self._dtype:
            return result
        is_cast = _narrowed(func, args, result) == self._dtype
        if not is_cast and not any(id(each) in self._cast for each in args):
            return result
        if is_cast or (operation_name(func) not in _EXACT and not _is_view(result, args)):
            factor = 1 + _NUDGE * torch.finfo(self._dtype).eps
            wide = torch.complex128 if result.is_complex() else torch.float64
            nudged = (result.to(wide) * factor).to(result.dtype)
            result = result.copy_(nudged) if operation_name(func).endswith("_") else nudged
        self._cast[id(result)] = result
        return result


def _is_view(result: Tensor, args: tuple[Any, ...]) -> bool:
    storage = result.untyped_storage().data_ptr()
    return any(isinstance(each, Tensor) and each.untyped_storage().data_ptr() == storage for each in args)


def _narrowed(func: Any, args: tuple[Any, ...], result: Any) -> torch.dtype | None:
    """The dtype of a result, or of its parts if it is complex, that is narrower than the first such input.

    Than the last one, where that is added to what was there, or stored in its place.
    """
    if not isinstance(result, Tensor) or not _is_rounded(result) or result.numel() < 2:
        return None
    floating = [value for value in args if isinstance(value, Tensor) and _is_rounded(value)]
    is_last = operation_name(func) in (*_ADDING, *_STORING)
    given = next(iter(reversed(floating) if is_last else floating), None)
    if given is None or torch.finfo(given.dtype).eps >= torch.finfo(result.dtype).eps:
        return None
    return result.dtype.to_real()


def _is_rounded(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _perturbed(built: BuiltModule, x: Tensor, eps: float, index: int) -> Tensor:
    generator = torch.Generator().manual_seed(index)

    def jitter(value: Tensor) -> Tensor:
        sign = torch.randint(2, value.shape, generator=generator).to(value) * 2 - 1
        return value * (1 + eps * sign)

    kept = [(parameter, parameter.detach().clone()) for parameter in built.module.parameters()]
    try:
        for parameter, value in kept:
            if value.is_floating_point():
                parameter.copy_(jitter(value))
        return built(jitter(x) if x.is_floating_point() else x)
    finally:
        for parameter, value in kept:
            parameter.copy_(value)
