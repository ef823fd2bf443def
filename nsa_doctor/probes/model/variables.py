"""Which variables of the environment a subject's code asks for while it runs, and where."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.subject.contract import Subject

_ENVIRON = type(os.environ)
_THROUGH = (os.__file__, sys.modules["collections.abc"].__file__, "<frozen os>", "<frozen _collections_abc>")


def variables_read(subject: Subject, call: Callable[[], object]) -> dict[str, Place]:
    """The names that the subject's own lines ask `os.environ` for during the call, and the first line for each."""
    frames, found = FrameFilter(subject.packages), dict[str, Place]()
    read = _ENVIRON.__getitem__

    def recording(environ: Any, name: Any) -> Any:
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename in _THROUGH:
            frame = frame.f_back
        if isinstance(name, str) and frame is not None and frames.rank_of(frame.f_code) == 3:
            code = frame.f_code
            found.setdefault(name, Place(file=code.co_filename, line=frame.f_lineno, function=code.co_name))
        return read(environ, name)

    with patch.object(_ENVIRON, "__getitem__", recording):
        call()
    return found


def other_values(name: str) -> Iterator[str | None]:
    """Values that a switch may have and this one has not; None for unset."""
    yield from (value for value in ("1", "0", None) if value != os.environ.get(name))


@contextmanager
def environment_with(name: str, value: str | None) -> Iterator[None]:
    """The environment with that value of a variable, or without the variable."""
    with patch.dict(os.environ):
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
        yield
