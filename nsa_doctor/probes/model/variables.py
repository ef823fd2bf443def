"""Which variables of the environment a subject's code asks for while it runs, and where."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.subject.contract import Subject

_ENVIRONMENT = "os.environ"
_MAPPING = os._Environ
_PYTHON = f"{os.path.dirname(os.__file__)}/"
_OWN = 3  # rank of the subject's own code


def variables_read(subject: Subject, call: Callable[[], object]) -> dict[str, Place]:
    """The names that the subject's own lines ask `os.environ` for during the call, and the first line for each."""
    frames, found = FrameFilter(subject.packages), dict[str, Place]()
    read = _MAPPING.__getitem__

    def recording(held: Any, name: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _is_pythons(frame.f_code.co_filename):
            frame = frame.f_back
        if isinstance(name, str) and frame is not None and frames.rank_of(frame.f_code) == _OWN:
            code = frame.f_code
            found.setdefault(name, Place(file=code.co_filename, line=frame.f_lineno, function=code.co_name))
        return read(held, name)

    with patch.object(_MAPPING, "__getitem__", recording):
        call()
    return found


def other_values(name: str) -> list[str | None]:
    """Values that a switch may have and this one has not; None for unset."""
    with patch.dict(_ENVIRONMENT) as held:
        return [value for value in ("1", "0", None) if value != held.get(name)]


@contextmanager
def environment_with(name: str, value: str | None) -> Iterator[None]:
    """The environment with that value of a variable, or without the variable."""
    with patch.dict(_ENVIRONMENT) as held:
        held.pop(name, None)
        if value is not None:
            held[name] = value
        yield


def _is_pythons(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_PYTHON) and "-packages/" not in file)
