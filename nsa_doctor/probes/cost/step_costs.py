"""What training steps of the same lengths leave behind and how much each one does: counted, the same on every machine.

Every step has values of its own, and the lengths go round in a small cycle, so that a table by content shows itself as
the leak it is, and one by length as the bounded thing it is. What is compared are whole cycles.
"""

import gc
import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import Line
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.probes.cost.alive import Holdings
from nsa_doctor.probes.cost.bounds import are_in_bounded_containers, may_reach, takes_out
from nsa_doctor.probes.hooks.attribute_lines import line_that_stores
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import callable_place
from nsa_doctor.probes.internal import MODULES, PARAMETERS, part_at
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.model.perform import NoWatcher, Watcher
from nsa_doctor.probes.model.training import new_optimizer, take_step
from nsa_doctor.subject.contract import Subject

_DEEPEST = 4  # containers within containers
_CYCLE = (17, 16)
STEPS_OF_A_CYCLE = len(_CYCLE)
_WARM_UP = 1  # a cycle in which lazy tables are built
_FIRST = 3  # cycles that are looked at; as many at the end of each stretch that is not
_STRETCH = 48  # cycles nobody looks at
_FURTHER = (64, 128, 304)  # where there may be a bound: those of 1,000 entries, or 1,024, are reached
_MOST_OPERATIONS = 200_000  # a few seconds' worth
_SEEDS_APART = 101


@dataclass(frozen=True, kw_only=True)
class Step:
    """One cycle of steps: bytes held after it that some step allocated, operations it ran and bytes they produced.

    `at` counts the cycles there were.
    """

    at: int
    held_bytes: int
    num_operations: int
    made_bytes: int
    held_by_place: dict[Place, int]
    made_by_place: dict[Place, int]


@dataclass
class Steps:
    """A module that takes step after step, in training with the same gradients.

    Where `is_loop`, the step is that of the subject's own training loop, which it then has to offer.
    """

    subject: Subject
    mode: Mode
    is_loop: bool = False
    num_taken: int = 0

    def __post_init__(self) -> None:
        self._built_beside = built(self.subject, mode=self.mode, is_randomised=False)
        self._holdings = Holdings(self.subject.packages)
        self._holdings.know(self._built_beside.module, self._built_beside.input(1))
        self._optimizer = new_optimizer(self._built_beside.module) if self.is_loop else None

    def grow(
        self, is_more: Callable[[list[Step]], bool], goes_on: Callable[[list[Step], list[Step]], bool]
    ) -> tuple[list[Step], list[Step]] | None:
        """The first cycles and the last ones, if there `is_more` in each of both and it `goes_on` between them.

        What containers hold that state their bound is no growth. Where what holds it takes out of it too, or is not
        known, more steps are taken than most bounded containers hold entries, or a few seconds allow.
        """
        for _ in range(_WARM_UP):
            self._cycle()
        first = last = [self._cycle() for _ in range(_FIRST)]
        if not is_more(first) or are_in_bounded_containers(self._holdings.holds):
            return None
        spent = 0
        for stretch in (_STRETCH, *_FURTHER):
            if stretch != _STRETCH and (spent > _MOST_OPERATIONS or not self._may_be_bounded()):
                break
            for _ in range(stretch):
                self._pass_by()
            last = [self._cycle() for _ in range(_FIRST)]
            spent += stretch * last[-1].num_operations
            if not is_more(last) or not goes_on(first, last):
                return None
        return first, last

    @property
    def num_steps(self) -> int:
        """Single steps that were taken."""
        return self.num_taken * STEPS_OF_A_CYCLE

    def left_for_good(self, first: list[Step]) -> bool:
        """Whether every one of those cycles has left something that is still held."""
        return all(self._holdings.left_by(step.at) for step in first)

    def may_be_trimmed(self) -> bool:
        """Whether the code of what holds it takes out of it too, past a number not yet reached."""
        return any(takes_out(*each) and may_reach(*each) for each in self._known_holders())

    def _may_be_bounded(self) -> bool:
        """Whether its holder takes out of it too; or who holds it is not known."""
        known = list(self._known_holders())
        return any(takes_out(*each) for each in known) if known else bool(self._holdings.held_bytes)

    def _known_holders(self) -> Iterator[tuple[Any, str]]:
        """Objects and the attribute in which they hold it."""
        if (holder := self.holder()) is not None:
            yield part_at(self._built_beside.module, holder[0].module), holder[1]
        elif self.is_loop and hasattr(owner := self._loop_owner(), name := self.loop_holder()):
            yield owner, name

    def _cycle(self) -> Step:
        """Take one step of each length, watched."""
        holdings, self.num_taken = self._holdings, self.num_taken + 1
        holdings.round = self.num_taken
        before, made, made_before = holdings.num_operations, holdings.made_bytes, holdings.made_by_place.copy()
        for index in range(STEPS_OF_A_CYCLE):
            self._step(holdings, index)
            gc.collect(1)
        return Step(
            at=self.num_taken,
            held_bytes=holdings.held_bytes,
            num_operations=holdings.num_operations - before,
            made_bytes=holdings.made_bytes - made,
            held_by_place=dict(+holdings.by_place),
            made_by_place=dict(Counter(holdings.made_by_place) - made_before),
        )

    def _pass_by(self) -> None:
        """The same, and nobody watches."""
        self.num_taken += 1
        for index in range(STEPS_OF_A_CYCLE):
            self._step(NoWatcher(), index)

    def holder(self) -> tuple[Place, str] | None:
        """The module in whose attributes most of what is held is found, and the attribute's name."""
        found: Counter[tuple[str, str]] = Counter()
        for path, module in self._built_beside.module.named_modules():
            for name, value in vars(module).items():
                if name not in (MODULES, PARAMETERS):
                    found[path, name] += sum(map(self._holdings.holds, _tensors(value, _DEEPEST)))
        (path, name), number = max(found.items(), key=lambda item: item[1], default=(("", ""), 0))
        if not number:
            return None
        kind = type(part_at(self._built_beside.module, path)).__name__
        return Place(module=path, module_class=kind), name

    def stored_at(self, owner: Place, attribute: str, made: Place) -> Place:
        """The line that stores in an attribute of that module what was made at a line, or else that line."""
        holder = part_at(self._built_beside.module, owner.module)
        line = line_that_stores(holder, attribute, Line(file=made.file, line=made.line, function=made.function))
        found = made if line is None else replace(made, file=line.file, line=line.line, function=line.function)
        return replace(found, module=owner.module, module_class=owner.module_class)

    @property
    def num_parameters(self) -> int:
        """How many tensors of parameters the module has."""
        return sum(1 for _ in self._built_beside.module.parameters())

    def loop_place(self) -> Place:
        """Where the training loop's step is defined; the subject as a whole is trained there."""
        return callable_place(self.subject.train_step, self._built_beside.module)

    def loop_holder(self) -> str:
        """The attribute or variable of the training loop in which something that is held is found, or nothing."""
        step, owner = self._loop_step(), self._loop_owner()
        seen = inspect.getclosurevars(step) if inspect.isfunction(step) else None
        named = {} if owner is None or isinstance(owner, torch.nn.Module) else dict(getattr(owner, "__dict__", {}))
        named |= {**seen.globals, **seen.nonlocals} if seen is not None else {}
        held = (name for name, value in named.items() if any(map(self._holdings.holds, _tensors(value, _DEEPEST))))
        return next(held, "")

    def _loop_step(self) -> Any:
        return inspect.unwrap(self.subject.train_step) if self.subject.train_step is not None else None

    def _loop_owner(self) -> Any:
        step = self._loop_step()
        return getattr(step, "__self__", None if inspect.isfunction(step) else step)

    def _step(self, watcher: Watcher, index: int) -> None:
        module, subject = self._built_beside.module, self.subject
        seed = subject.seed + _SEEDS_APART * (self.num_taken * STEPS_OF_A_CYCLE + index)
        x = self._built_beside.input(min(_CYCLE[index], subject.max_length), seed=seed)
        if self._optimizer is not None:
            with torch.enable_grad(), watcher.phase("forward"):
                take_step(self._built_beside, self._optimizer, x)
        else:
            with torch.set_grad_enabled(self.mode != "no_grad"):
                with watcher.phase("forward"):
                    output = self._built_beside(x)
                if self.mode == "train" and output.requires_grad:
                    loss = (output * make_cotangent(output, subject.seed)).sum()
                    with watcher.phase("backward"):
                        ask("backward", loss.backward, module, output)
        module.zero_grad(set_to_none=True)


def grows_steadily(amounts: Sequence[int]) -> bool:
    """Whether every further one adds something, and the last ones at least half of what the first ones add."""
    added = [later - earlier for earlier, later in pairwise(amounts)]
    half = len(added) // 2
    return bool(added) and min(added) > 0 and sum(added[half:]) * 2 >= sum(added[:half])


def has_gone_on(amount: Callable[[Step], int], first: Sequence[Step], last: Sequence[Step]) -> bool:
    """Whether, between those cycles, it has grown at half the pace it grows at in the end, or more."""
    pace = (amount(last[-1]) - amount(last[0])) / (last[-1].at - last[0].at)
    return amount(last[0]) - amount(first[-1]) >= pace * (last[0].at - first[-1].at) / 2


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
