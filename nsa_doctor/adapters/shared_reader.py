"""The calls of a subject's functions in a region, with what each is given and gives: which of two regions share one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, TypeVar

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.frames import FrameFilter

_SUBJECTS = 3  # the rank of its own lines
_Answer = TypeVar("_Answer")


@dataclass(eq=False)
class Call:
    """A function of the subject's, what it was given, by name, and what it returned."""

    code: CodeType
    given: dict[str, Any]
    answer: Any = field(default=None, repr=False)

    def holds(self, cache: Any) -> bool:
        """Whether it is given that object."""
        return any(value is cache for value in self.given.values())

    def gives(self, output: Any) -> bool:
        """Whether it returns that object, alone or in a tuple."""
        parts = self.answer if isinstance(self.answer, tuple) else (self.answer,)
        return any(each is output for each in parts)

    def is_as(self, other: "Call") -> bool:
        """Whether the same function is given the same switches."""
        return self.code is other.code and _switches(self.given) == _switches(other.given)


def calls_in(packages: Sequence[str], run: Callable[[], _Answer]) -> tuple[list[Call], _Answer]:
    """The calls of the subject's functions while something runs, and what that gives."""
    seen: list[Call] = []
    with _watching(FrameFilter(tuple(packages)), seen):
        answer = run()
    return seen, answer


@contextmanager
def _watching(frames: FrameFilter, seen: list[Call]) -> Iterator[None]:
    open_calls: dict[FrameType, Call] = {}

    def look(frame: FrameType, event: str, answer: object) -> None:
        if event == "call" and frames.rank_of(frame.f_code) == _SUBJECTS:
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
            held = frame.f_locals
            open_calls[frame] = Call(frame.f_code, {name: held[name] for name in names if name in held})
            seen.append(open_calls[frame])
        elif event == "return" and frame in open_calls:
            open_calls.pop(frame).answer = answer

    with calls_seen_by(look):
        yield


def _switches(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if isinstance(value, (bool, str))}
