"""The parts in which a sequence is fed to a cache, and which of them tell what is usual in the last."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.tensors.operations import operation_name

_MOST_CONTROLS = 2  # of each kind


@dataclass(frozen=True)
class Part:
    """Tokens `start` to `end`, which are fed together."""

    start: int
    end: int


Feed = Callable[[Callable[[int], None], Sequence[Part]], object]  # feeds the parts, and says the number of each before


def controls_of(feed: Feed, parts: Sequence[Part], alike: Sequence[int]) -> set[int]:
    """Of the earlier parts of its width the latest, and those that run what the last part runs most nearly.

    A token that completes a block is compared with one that did.
    """
    if len(alike) <= _MOST_CONTROLS:
        return set(alike)
    names = _Names()
    with torch.no_grad(), names:
        feed(names.begin, parts)
    own = names.of_part[len(parts) - 1]
    apart = {number: ((own - names.of_part[number]) + (names.of_part[number] - own)).total() for number in alike}
    nearest = sorted(alike, key=lambda number: (apart[number], -number))
    return {*alike[-_MOST_CONTROLS:], *nearest[:_MOST_CONTROLS]}


class _Names(DispatchWatcher):
    """Counts the operations of each part by name."""

    def __init__(self) -> None:
        super().__init__()
        self.of_part: dict[int, Counter[str]] = defaultdict(Counter)
        self._part = 0

    def begin(self, part: int) -> None:
        """The part of that number comes next."""
        self._part = part

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and count it."""
        self.of_part[self._part][operation_name(func)] += 1
        return func(*args, **kwargs)
