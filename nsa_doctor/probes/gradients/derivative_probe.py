"""One built module on one input, differentiated both ways: by autograd, and by moving tensors of its graph."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import NotComparableError, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.gradients.derivative import Agreement, Slope, compare
from nsa_doctor.probes.hooks.flow import Flow, Recording
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import hooks_on, uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule, require_finite
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.numerics.precision import precision_of
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.probes.tensors.widened import Widened

_FROM_ZERO = 0.02
_SAME = 0.25  # of the slopes: bfloat16 changes them by a few hundredths, another formula by more
_ORDINARY = 1e3  # times what the smaller values are like; normally distributed ones stay below 100


@dataclass
class Differential:
    """What autograd says of the graph's tensors along one random direction each; `recording` when it was followed.

    `sizes` are what the slopes would be along the gradients themselves; `again` the slopes of a second backward pass
    through the same graph, if one was made.
    """

    slopes: list[float]
    directions: list[Tensor]
    rounding: float
    sizes: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    recording: Recording = field(default_factory=Recording)
    hooks: list[list[Callable[..., Any]]] = field(default_factory=list)


class DerivativeProbe:
    """A built module and x; `only_first` tokens of the output are differentiated (all of them by default).

    Every run starts from the same state of the module and of random numbers. Raises NotComparableError when the
    output is not finite, or not the same twice: then nothing can be compared.
    """

    def __init__(self, built: BuiltModule, x: Tensor, only_first: int | None = None) -> None:
        self.built, self.x, self._only_first = built, x, only_first
        self.parameters = [each for each in built.module.parameters() if each.requires_grad]
        self._start = ModuleState(built.module)
        self.base = require_finite(self._detached(self._run(x.clone())), x.shape[1])
        self.cotangent = make_cotangent(self.base, built.subject.seed)
        if only_first is not None:
            self.cotangent[:, only_first:] = 0

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the module."""
        return getattr(torch, self.built.dtype)

    def differentiate(self, seed: int, is_followed: bool = False, is_repeated: bool = False) -> Differential:
        """Autograd's slopes: of the input and the trainable parameters, or of every tensor of the graph."""
        found = Differential([], [], 0.0)
        x = self.x.clone()
        given = x.requires_grad_(x.is_floating_point()).clone()
        collected = _Collected()
        handles = []

        def visit(number: int, tensor: Tensor) -> None:
            direction = self._direction(tensor, number, seed)
            found.directions.append(direction)
            if not tensor.is_leaf:
                handles.append(tensor.register_hook(collected.collecting(number, direction)))

        leaves = [*([given] if given.requires_grad else []), *self.parameters]
        places = Places(FrameFilter(self.built.subject.packages)) if is_followed else None
        flow = Flow(leaves, visit, places)
        output = self._run(given, flow if is_followed else None, places)
        if not torch.equal(self._detached(output), self.base):
            raise NotComparableError(f"two runs differ at S={self.x.shape[1]}, so no derivative can be measured")
        found.recording = flow.recording
        own = {id(hook) for hook in collected.hooks}
        for tensor in flow.recording.tensors:
            hooks = hooks_on(tensor)
            found.hooks.append([hook for hook in hooks if id(hook) not in own])
        passes = [
            self._backward(output, found, collected, keeps) for keeps in ([True, False] if is_repeated else [False])
        ]
        for handle in handles:
            handle.remove()
        (found.slopes, found.sizes), found.again = passes[0], passes[-1][0]
        if not math.isfinite(sum(found.sizes)):
            raise NotComparableError(f"gradients are not finite at S={self.x.shape[1]}")
        # Sums of autograd's own products, rounded in the module's dtype.
        found.rounding = 64 * float(torch.finfo(self.dtype).eps) * sum(abs(slope) for slope in found.slopes)
        return found

    def slope(self, differential: Differential, numbers: Sequence[int], is_followed: bool = False) -> Slope:
        """Compare both ways along the directions of those tensors."""
        moved = set(numbers)
        shifted = lambda step: self._shifted(differential, moved, step, is_followed)  # noqa: E731
        slopes = [differential.slopes[number] for number in numbers]
        return compare(shifted, self.base, self.cotangent, slopes, self.dtype, differential.rounding)

    def agreement(self, seeds: Sequence[int]) -> Agreement:
        """All leaves moved at once: DIFFERS only when they do along every one of those directions.

        Of a module in float64 that rounds values to less on its way, of which autograd knows nothing, differences are
        steps: they are taken once more without those casts, and stand for it where autograd says the same there.
        """
        found = self._agreement(seeds)
        if found is Agreement.AGREES or self.dtype != torch.float64 or not self.rounds():
            return found
        return Agreement.AGREES if attempt(lambda: self._agrees_without_rounding(seeds)) is True else found

    def rounds(self) -> bool:
        """Whether values pass through a dtype narrower than the module's."""
        return precision_of(self.built, lambda: self.built(self.x)).dtype != self.dtype

    def _agrees_without_rounding(self, seeds: Sequence[int]) -> bool:
        """Whether the module agrees without its casts, and has about the same slopes: else another path is taken."""
        with Widened():
            wide = DerivativeProbe(self.built, self.x, self._only_first)
            agreement, slopes = wide._agreement(seeds), wide.differentiate(seeds[0]).slopes
        own = self.differentiate(seeds[0]).slopes
        return agreement is Agreement.AGREES and math.dist(own, slopes) <= _SAME * math.hypot(*slopes)

    def _agreement(self, seeds: Sequence[int]) -> Agreement:
        for seed in seeds:
            differential = self.differentiate(seed)
            slope = self.slope(differential, range(len(differential.slopes)))
            if slope.agreement is not Agreement.DIFFERS:
                return slope.agreement
            if self.differentiate(seed).slopes != differential.slopes:
                raise NotComparableError(f"gradients differ from pass to pass at S={self.x.shape[1]}")
        return Agreement.DIFFERS

    def _backward(
        self, output: Tensor, found: Differential, collected: "_Collected", keeps_graph: bool
    ) -> tuple[list[float], list[float]]:
        """One backward pass from a fresh start: each tensor's slope, and its largest possible one."""
        for parameter in self.parameters:
            parameter.grad = None
        if output.requires_grad:
            loss = (output.double() * self.cotangent).sum()
            ask("backward", lambda: loss.backward(retain_graph=keeps_graph), self.built.module, output)
        for number, tensor in enumerate(found.recording.tensors):
            if tensor.is_leaf and tensor.grad is not None:
                collected.collect(number, found.directions[number], tensor.grad)
                tensor.grad = None
        return collected.read(len(found.directions))

    def _shifted(self, differential: Differential, moved: set[int], step: float, is_followed: bool) -> Tensor:
        def visit(number: int, tensor: Tensor) -> None:
            if number in moved:
                tensor.data.add_(differential.directions[number], alpha=step)

        kept = [(parameter, parameter.detach().clone()) for parameter in self.parameters]
        x = self.x.clone()
        given = x.requires_grad_(x.is_floating_point()).clone()
        leaves = [*([given] if given.requires_grad else []), *self.parameters]
        try:
            flow = Flow(leaves, visit)
            return self._detached(self._run(given, flow if is_followed else None))
        finally:
            for parameter, value in kept:
                parameter.data.copy_(value)

    def _run(self, given: Tensor, flow: Flow | None = None, places: Places | None = None) -> Tensor:
        self._start.restore()
        call: Callable[[], Tensor] = lambda: self.built.call(given)  # noqa: E731
        with torch.enable_grad():
            if flow is None:
                return call()
            if places is not None:
                places.know(self.built.module)
            watching = nullcontext() if places is None else places.watching()
            with uncompiled(), watching:
                with flow:
                    output = call()
                flow.meet(output)
                return output

    def _detached(self, output: Tensor) -> Tensor:
        return output.detach().double()

    def _direction(self, tensor: Tensor, number: int, seed: int) -> Tensor:
        """Random, as large as the tensor's values are; rows an embedding keeps out of training stay where they are."""
        generator = torch.Generator().manual_seed(1000003 * seed + number)
        values = tensor.detach().double()
        is_ordinary = values.abs() <= _ORDINARY * _least(
            values
        )  # scores hide behind -inf or -1e30: no step moves those
        size = float(torch.where(is_ordinary, values, 0.0).square().sum().div(is_ordinary.sum().clamp(min=1)).sqrt())
        direction = torch.randn(tensor.shape, generator=generator, device="cpu").to(tensor.device)
        direction = direction * is_ordinary * (size or _FROM_ZERO)
        if not tensor.is_leaf and bool((values == values.round()).all()):
            direction.zero_()  # rounded on the way: what follows may have its kinks at integers
        for module in self.built.module.modules():
            padding = getattr(module, "padding_idx", None)
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.weight is tensor and padding is not None:
                direction[padding] = 0
        return direction.to(tensor.dtype)


def _least(values: Tensor) -> float:
    """What the smaller ones of the values that are not zero are like: their twentieth part lies below."""
    sizes = values.abs().flatten()
    sizes = sizes[(sizes > 0) & isfinite(sizes)]
    return float(sizes.kthvalue(1 + sizes.numel() // 20).values) if sizes.numel() else 1.0


class _Collected:
    """Gradients projected onto directions, as hooks hand them in; what comes twice in one pass adds up."""

    def __init__(self) -> None:
        self.hooks: list[Callable[[Tensor], None]] = []
        self._slopes: dict[int, float] = {}
        self._sizes: dict[int, float] = {}

    def collecting(self, number: int, direction: Tensor) -> Callable[[Tensor], None]:
        hook = lambda gradient: self.collect(number, direction, gradient)  # noqa: E731
        self.hooks.append(hook)
        return hook

    def collect(self, number: int, direction: Tensor, gradient: Tensor) -> None:
        dense = gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
        slope = float((dense.double() * direction.double()).sum())
        size = float(dense.double().norm() * direction.double().norm())
        self._slopes[number] = self._slopes.get(number, 0.0) + slope
        self._sizes[number] = self._sizes.get(number, 0.0) + size

    def read(self, count: int) -> tuple[list[float], list[float]]:
        slopes, sizes = self._slopes, self._sizes
        self._slopes, self._sizes = {}, {}
        return [slopes.get(number, 0.0) for number in range(count)], [sizes.get(number, 0.0) for number in range(count)]
