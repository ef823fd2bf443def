"""Whether one function of the subject's reads a prompt and what follows it: then that may be several tokens too."""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar

from torch import Tensor

from nsa_doctor.core.frames import FrameFilter

_SUBJECTS = 3  # the rank of its own lines
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Call:
    """A function of the subject's and what it was given, by name."""

    code: CodeType
    given: dict[str, Any]

    def takes(self, num_tokens: int) -> bool:
        """Whether it is given a tensor [B, num_tokens, ...]."""
        tensors = (value for value in self.given.values() if isinstance(value, Tensor))
        return any(each.ndim > 1 and each.shape[1] == num_tokens for each in tensors)

    def holds(self, cache: Any) -> bool:
        """Whether it is given that object."""
        return any(value is cache for value in self.given.values())

    def is_as(self, other: "Call") -> bool:
        """Whether the same function is given the same switches."""
        return self.code is other.code and _switches(self.given) == _switches(other.given)


def reads_both(prompt: Sequence[Call], num_tokens: int, step: Sequence[Call], cache: Any) -> bool:
    """Whether a function that has the cache in a step of one token reads the whole prompt, with equal switches."""
    at_once = [each for each in prompt if each.takes(num_tokens)]
    going_on = [each for each in step if each.takes(1) and each.holds(cache)]
    return any(one.is_as(other) for one in going_on for other in at_once)


def calls_in(packages: Sequence[str], run: Callable[[], _Answer]) -> tuple[list[Call], _Answer]:
    """The calls of the subject's functions while something runs, and what that gives."""
    seen: list[Call] = []
    with _watching(FrameFilter(tuple(packages)), seen):
        answer = run()
    return seen, answer


@contextmanager
def _watching(frames: FrameFilter, seen: list[Call]) -> Iterator[None]:
    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frames.rank_of(frame.f_code) == _SUBJECTS:
            values = inspect.getargvalues(frame)
            seen.append(Call(frame.f_code, {name: values.locals[name] for name in values.args}))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


def _switches(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if isinstance(value, (bool, str))}
