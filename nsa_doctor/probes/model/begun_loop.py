"""A training loop that a subject offers, begun around a module built afresh, and what is seen of it."""

import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.seams import offers_no
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import Places, callable_place, in_subject
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.state import next_draws, preserved_state, seed_everything
from nsa_doctor.probes.model.stepping import Step, recorded
from nsa_doctor.probes.model.training import number
from nsa_doctor.probes.tensors.operations import operation_name
from nsa_doctor.subject.contract import Subject, WrongOutputError
from nsa_doctor.subject.training_loop import TrainingLoop

_DEEPEST = 8  # containers within containers
_SMALL = 2.0**-20  # too small to be clipped, and exact


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One evaluation: its loss, which modules ran in training mode, and whether it kept a graph.

    `drawn` is what each random generator gives next, by whose it is.
    """

    loss: float
    training: tuple[str, ...]
    keeps_graph: bool
    drawn: Mapping[str, float]


@dataclass(frozen=True)
class BegunLoop:
    """A loop and the module that it trains; each call of it is seeded."""

    sp: BuiltModule
    loop: TrainingLoop

    @classmethod
    def of(cls, subject: Subject, seed: int | None = None) -> "BegunLoop":
        """A loop before its first step; `seed` draws other weights."""
        other = subject if seed is None else replace(subject, seed=seed)
        sp, begin = built(other, mode="train"), subject.loop
        if begin is None:
            raise NotApplicableError(offers_no(("loop",)))
        seed_everything(other.seed)
        return cls(sp, ask("the start of the training loop", lambda: _checked(begin(sp.module)), sp.module))

    def batches(self, length: int, seed: int) -> list[Tensor]:
        """Two batches of two rows, the same for every loop around such a module."""
        return [self.sp.input(length, batch=2, seed=seed + index) for index in range(2)]

    def step(self, batches: Sequence[Tensor], seed: int) -> Step:
        """One step on these micro-batches."""
        seed_everything(seed)
        given = [each.clone() for each in batches]
        call = lambda: number(ask("a training step", lambda: self.loop.step(given), self.sp.module))  # noqa: E731
        return recorded(self.sp, call)

    def evaluate(self, batches: Sequence[Tensor], seed: int) -> Evaluated:
        """One evaluation; NotApplicableError where the loop has none."""
        evaluate = self.loop.evaluate
        if evaluate is None:
            raise NotApplicableError("its training loop offers no evaluation")
        given, module = [each.clone() for each in batches], self.sp.module
        seed_everything(seed)
        with modes(module) as training, _graphs(module) as kept, preserved_state(), torch.enable_grad():
            loss = number(ask("evaluation", lambda: evaluate(given), module))
            drawn = next_draws()
        return Evaluated(loss=loss, training=tuple(training), keeps_graph=any(kept), drawn=drawn)

    def saved(self) -> Any:
        """A snapshot as it comes back from a file; None where the loop makes none."""
        snapshot = self.loop.snapshot
        if snapshot is None:
            return None
        taken = ask("a snapshot", snapshot, self.sp.module)
        loaded = attempt(lambda: _through_a_file(taken))
        kept = attempt(lambda: copy.deepcopy(taken)) if isinstance(loaded, Caught) else loaded
        if isinstance(kept, Caught):
            raise NotComparableError(f"its snapshot can neither be saved nor copied: {kept.sentence}")
        return kept

    def place_of(self, call: Callable[..., Any] | None, line: Place | None = None) -> Place:
        """A line of the loop's, else where what it is called through is defined."""
        return in_subject(line or callable_place(call, self.sp.module), self.sp.module)

    def places(self) -> Places:
        """Says where the subject's code stands."""
        places = Places(FrameFilter(self.sp.subject.packages))
        places.know(self.sp.module)
        return places


class WithoutDropout(DispatchWatcher):
    """While it is entered, what is drawn to drop values drops none, so that equal rows give equal gradients."""

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; of a mask of zeros and ones, give the mean, by which dropout divides."""
        name = operation_name(func)
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name == "bernoulli_" and len(args) > 1 and isinstance(args[1], float):
            return args[0].fill_(args[1])
        return func(*args, **kwargs)


@contextmanager
def small_gradients(module: nn.Module) -> Iterator[None]:
    """Gradients come scaled down, so that no limit to their size is met."""
    with ExitStack() as hooks:
        for parameter in module.parameters():
            if parameter.requires_grad:
                hooks.callback(parameter.register_hook(lambda gradient: gradient * _SMALL).remove)
        yield


@contextmanager
def modes(root: nn.Module) -> Iterator[list[str]]:
    """The paths of the modules that are called in training mode while the region lasts, in their order."""
    found: dict[str, None] = {}

    def look(path: str, module: nn.Module, _args: Any) -> None:
        if module.training:
            found.setdefault(path)

    seen: list[str] = []
    with ExitStack() as hooks:
        for path, module in root.named_modules():
            hooks.callback(module.register_forward_pre_hook(partial(look, path)).remove)
        yield seen
        seen += found


@contextmanager
def _graphs(root: nn.Module) -> Iterator[list[bool]]:
    """Whether each call of the module is made with gradients on."""
    seen: list[bool] = []
    hook = root.register_forward_pre_hook(lambda _module, _args: seen.append(torch.is_grad_enabled()))
    try:
        yield seen
    finally:
        hook.remove()


def tensors_by_path(value: Any, path: str = "", depth: int = _DEEPEST) -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested mappings and sequences, with the way to each: model.embed.weight."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (Mapping, list, tuple)) and depth:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, each in items:
            yield from tensors_by_path(each, f"{path}.{name}" if path else str(name), depth - 1)


def _checked(loop: Any) -> TrainingLoop:
    if not isinstance(loop, TrainingLoop):
        raise WrongOutputError(f"the seam `loop` must return a TrainingLoop, got {type(loop).__name__}")
    return loop


def _through_a_file(value: Any) -> Any:
    """What torch.save and torch.load make of it: the subject's own objects, in the subject's own process."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)
