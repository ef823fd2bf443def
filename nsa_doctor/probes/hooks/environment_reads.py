"""Which variables of the environment a subject's own code reads, and on which line."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place

_ASKING = ("__getitem__", "__contains__")  # get(), pop() and os.getenv() ask through the first
_THROUGH = frozenset({os.__file__, "<frozen os>", "<frozen _collections_abc>", "<frozen posixpath>"})


@contextmanager
def environment_reads(frames: FrameFilter) -> Iterator[dict[str, Place]]:
    """Names of variables that the subject's own lines ask for in this region, each with the first such line."""
    found: dict[str, Place] = {}
    kind: Any = type(os.environ)

    def asking(method: str) -> Callable[[Any, Any], Any]:
        original = getattr(kind, method)

        def ask(environment: Any, name: Any) -> Any:
            if environment is os.environ and isinstance(name, str) and name not in found:
                place = attempt(lambda: _own_line(frame_above(3), frames))
                if isinstance(place, Place):
                    found[name] = place
            return original(environment, name)

        return ask

    with ExitStack() as patches:
        for method in _ASKING:
            patches.enter_context(patch.object(kind, method, asking(method)))
        yield found


@contextmanager
def answers_to(name: str) -> Iterator[list[Any]]:
    """What the functions return that ask for that variable in this region, call by call."""
    kind: Any = type(os.environ)
    original = kind.__getitem__
    asking: list[FrameType] = []
    answers: list[Any] = []

    def ask(environment: Any, key: Any) -> Any:
        if environment is os.environ and key == name and (frame := _asker(frame_above(2))) is not None:
            asking.append(frame)
        return original(environment, key)

    def look(frame: FrameType, event: str, arg: Any) -> None:
        if event == "return" and any(frame is each for each in asking):
            answers.append(arg)

    with calls_seen_by(look), patch.object(kind, "__getitem__", ask):
        yield answers


@contextmanager
def environment_with(name: str, value: str | None) -> Iterator[None]:
    """The environment with that value of a variable, or without the variable."""
    with patch.dict(os.environ):
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
        yield


def other_values(name: str) -> Iterator[str | None]:
    """Values that a switch may have and this one has not; None for unset."""
    yield from (value for value in ("1", "0", None) if value != os.environ.get(name))


def _own_line(frame: FrameType | None, frames: FrameFilter) -> Place | None:
    """The line that asks, where it is the subject's own and not that of a library that it has called."""
    frame = _asker(frame)
    if frame is None or frames.rank_of(frame.f_code) != 3:
        return None
    code = frame.f_code
    return Place(file=code.co_filename, line=frame.f_lineno, function=code.co_name)


def _asker(frame: FrameType | None) -> FrameType | None:
    """The function that asks, behind those of the standard library through which it does."""
    while frame is not None and frame.f_code.co_filename in _THROUGH:
        frame = frame.f_back
    return frame
