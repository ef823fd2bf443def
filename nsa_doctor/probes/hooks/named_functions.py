"""Functions of Python modules that a pass calls, of those whose names are asked for, and what they are called with."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter

_LIBRARYS = 2  # the rank of its files


@dataclass(frozen=True)
class FunctionCall:
    """The first call of a function that is given a tensor `x` first; `args` and `kwargs` are the rest."""

    name: str
    function: Callable[..., Any]
    x: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@contextmanager
def functions_called(frames: FrameFilter, is_meant: Callable[[str], bool]) -> Iterator[list[FunctionCall]]:
    """The functions by such a name that are called while the region lasts, each once, in order of the calls."""
    found: list[FunctionCall] = []
    seen: set[CodeType] = set()

    def note(frame: FrameType, code: CodeType) -> None:
        function = frame.f_globals.get(code.co_name) if is_meant(code.co_name) else None
        if not inspect.isfunction(function) or getattr(inspect.unwrap(function), "__code__", None) is not code:
            return
        if frames.rank_of(code) >= _LIBRARYS and (call := _call_of(function, code, frame)):
            found.append(call)

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code not in seen:
            seen.add(code)
            attempt(lambda: note(frame, code))  # what it raised would be raised in the subject's frame

    with calls_seen_by(look):
        yield found


def _call_of(function: Callable[..., Any], code: CodeType, frame: FrameType) -> FunctionCall | None:
    """What it was called with, where a tensor comes first and nothing is of a number that is not known."""
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or not code.co_argcount:
        return None
    held = frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = [_kept(held.get(name)) for name in names]
    x, *args = values[: code.co_argcount]
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return None
    kwargs = dict(zip(names[code.co_argcount :], values[code.co_argcount :], strict=True))
    return FunctionCall(code.co_name, function, x, tuple(args), kwargs)


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
