"""What identical training steps leave behind and how much each one does: counted, the same on every machine."""

import gc
import inspect
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.measurement import Mode, Place
from nsa_doctor.probes.alive import Holdings
from nsa_doctor.probes.inputs import make_cotangent
from nsa_doctor.probes.perform import NoWatcher, Watcher, ask
from nsa_doctor.probes.places import callable_place
from nsa_doctor.probes.specimen import specimen
from nsa_doctor.probes.training import new_optimizer, take_step
from nsa_doctor.subject import Subject

_DEEPEST = 4  # containers within containers


@dataclass(frozen=True, kw_only=True)
class Step:
    """After one step: bytes still held that some step allocated, operations it ran and bytes they produced."""

    held_bytes: int
    num_operations: int
    made_bytes: int
    held_by_place: dict[Place, int]
    made_by_place: dict[Place, int]


@dataclass
class Steps:
    """A module that takes the same step again and again: the same input, and in training the same gradients.

    Where `is_loop`, the step is that of the subject's own training loop, which it then has to offer.
    """

    subject: Subject
    length: int
    mode: Mode
    is_loop: bool = False
    taken: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._specimen = specimen(self.subject, mode=self.mode, is_randomised=False)
        self._x = self._specimen.input(self.length)
        self._holdings = Holdings(self.subject.packages)
        self._holdings.know(self._specimen.module, self._x)
        self._optimizer = new_optimizer(self._specimen.module) if self.is_loop else None

    def take(self, number: int) -> list[Step]:
        """Take further steps; all that were taken so far."""
        for _ in range(number):
            before, made = self._holdings.num_operations, self._holdings.made_bytes
            made_before = self._holdings.made_by_place.copy()
            self._step(self._holdings)
            self._specimen.module.zero_grad(set_to_none=True)
            gc.collect(1)
            self.taken.append(
                Step(
                    held_bytes=self._holdings.held_bytes,
                    num_operations=self._holdings.num_operations - before,
                    made_bytes=self._holdings.made_bytes - made,
                    held_by_place=dict(+self._holdings.by_place),
                    made_by_place=dict(Counter(self._holdings.made_by_place) - made_before),
                )
            )
        return self.taken

    def go_on(self, skipped: int, number: int) -> list[Step]:
        """Take `skipped` steps that nobody watches, and then further ones; these alone."""
        for _ in range(skipped):
            self._step(NoWatcher())
            self._specimen.module.zero_grad(set_to_none=True)
        return self.take(number)[-number:]

    def holder(self) -> tuple[Place, str] | None:
        """The module in whose attributes most of what is held is found, and the attribute's name."""
        found: Counter[tuple[str, str]] = Counter()
        for path, module in self._specimen.module.named_modules():
            for name, value in vars(module).items():
                if name not in ("_modules", "_parameters"):
                    found[path, name] += sum(map(self._holdings.holds, _tensors(value, _DEEPEST)))
        (path, name), number = max(found.items(), key=lambda item: item[1], default=(("", ""), 0))
        if not number:
            return None
        kind = type(self._specimen.module.get_submodule(path)).__name__
        return Place(module=path, module_class=kind), name

    @property
    def num_parameters(self) -> int:
        """How many tensors of parameters the module has."""
        return sum(1 for _ in self._specimen.module.parameters())

    def loop_place(self) -> Place:
        """Where the training loop's step is defined; the subject as a whole is trained there."""
        return callable_place(self.subject.train_step, self._specimen.module)

    def loop_holder(self) -> str:
        """The attribute or variable of the training loop in which something that is held is found, or nothing."""
        step = inspect.unwrap(self.subject.train_step) if self.subject.train_step is not None else None
        owner = getattr(step, "__self__", None if inspect.isfunction(step) else step)
        seen = inspect.getclosurevars(step) if inspect.isfunction(step) else None
        named = {} if owner is None or isinstance(owner, torch.nn.Module) else dict(getattr(owner, "__dict__", {}))
        named |= {**seen.globals, **seen.nonlocals} if seen is not None else {}
        held = (name for name, value in named.items() if any(map(self._holdings.holds, _tensors(value, _DEEPEST))))
        return next(held, "")

    def _step(self, watcher: Watcher) -> None:
        module, subject = self._specimen.module, self.subject
        if self._optimizer is not None:
            with torch.enable_grad(), watcher.phase("forward"):
                take_step(self._specimen, self._optimizer, self._x)
            return
        with torch.set_grad_enabled(self.mode != "no_grad"):
            with watcher.phase("forward"):
                output = self._specimen(self._x)
            if self.mode == "train" and output.requires_grad:
                loss = (output * make_cotangent(output, subject.seed)).sum()
                with watcher.phase("backward"):
                    ask("backward", loss.backward, module, output)


def grows_steadily(amounts: Sequence[int]) -> bool:
    """Whether every further step adds something, and the last ones at least half of what the first ones add."""
    added = [later - earlier for earlier, later in pairwise(amounts)]
    half = len(added) // 2
    return bool(added) and min(added) > 0 and sum(added[half:]) * 2 >= sum(added[:half])


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    """Tensors in a value and in the containers within it."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, set, frozenset, deque)):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(key, depth - 1)
            yield from _tensors(item, depth - 1)
