"""Which functions of the subject's own code are handed a tensor, and whether they read it."""

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.frames import FrameFilter


@dataclass(frozen=True)
class Receiver:
    """A function that was called with such a tensor, or with something that holds one, by the name of its argument."""

    code: CodeType
    argument: str

    @property
    def reads(self) -> bool:
        """Whether anything in the function, or in one that it defines, reads that argument."""
        if self.argument in self.code.co_cellvars:
            return True
        steps = dis.get_instructions(self.code)
        return any(step.opname.startswith("LOAD") and self.argument in _names(step.argval) for step in steps)


@contextmanager
def receivers(frames: FrameFilter, is_one: Callable[[Any], bool]) -> Iterator[list[Receiver]]:
    """The functions of the subject that are called with what is meant while the region lasts, in order of the calls."""
    found: list[Receiver] = []
    own: dict[CodeType, bool] = {}

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in own:
            own[code] = frames.rank_of(code) == 3
        if not own[code]:
            return
        count = code.co_argcount + code.co_kwonlyargcount
        handed = frame.f_locals
        found.extend(Receiver(code, name) for name in code.co_varnames[:count] if is_one(handed.get(name)))

    with calls_seen_by(called):
        yield found


def _names(value: Any) -> tuple[Any, ...]:
    """What an instruction loads: from Python 3.13 on, one may load two variables."""
    return value if isinstance(value, tuple) else (value,)
