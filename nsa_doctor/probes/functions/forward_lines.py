"""Which lines of a function's source compare positions, share out heads, make weights, NaN and writes, as they run."""

from collections.abc import Mapping
from types import FrameType
from typing import Any

from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.package import own_file
from nsa_doctor.probes.functions.calling import Asking, ask
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.subject.function import FunctionSubject, Problem

_LAST = ("detached", "weights")  # of which the last line counts, of others the first
_CALLER = own_file("probes", "functions", "calling.py")
_KINDS: Mapping[str, tuple[str, ...]] = {
    "masks": ("lt", "le", "gt", "ge", "tril", "triu"),
    "heads": ("repeat", "repeat_interleave", "expand", "index_select"),
    "detached": ("detach",),
    "weights": ("exp", "exp2", "_softmax", "_safe_softmax", "logsumexp"),
    "writes": ("index_put", "index_copy", "scatter", "copy"),
}


class _Watcher(DispatchWatcher):
    """Notes the line of the user's that an operation of each kind was called from."""

    def __init__(self, frames: FrameFilter) -> None:
        super().__init__()
        self._frames = frames
        self.lines: dict[str, Place] = {}

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        name = _plain(func)
        kind = next((kind for kind, names in _KINDS.items() if name in names), "")
        is_wanted = kind and (kind in _LAST or kind not in self.lines)
        if is_wanted and (kind != "masks" or not _is_float(args)) and (place := self._place()) is not None:
            self.lines[kind] = place
        result = func(*args, **kwargs)
        is_made = "nan" not in self.lines and _has_nan(result) and not any(map(_has_nan, (*args, *kwargs.values())))
        if is_made and (place := self._place()) is not None:
            self.lines["nan"] = place
        return result

    def _place(self) -> Place | None:
        frame: FrameType | None = frame_above(1)
        while frame is not None and frame.f_code.co_filename != _CALLER:
            code = frame.f_code
            if self._frames.rank_of(code) >= 2:
                return Place(file=code.co_filename, line=frame.f_lineno, function=code.co_name)
            frame = frame.f_back
        return None


def _plain(func: Any) -> str:
    return str(func).removeprefix("aten.").partition(".")[0].removesuffix("_")


def _is_float(args: tuple[Any, ...]) -> bool:
    return any(isinstance(each, Tensor) and each.is_floating_point() for each in args[:2])


def _has_nan(value: Any) -> bool:
    has_values = type(value) is Tensor and not value.is_meta  # what only traces has none
    return has_values and value.is_floating_point() and bool(value.isnan().any())


def line_of(subject: FunctionSubject, problem: Problem, *kinds: str) -> Place:
    """Where the function does the first of such things in a call; its definition where no line of the user's does."""
    key = ("lines", problem.shape, problem.branches, tuple(problem.constants))
    if key not in subject.known:
        watcher = _Watcher(FrameFilter(subject.packages))
        with watcher:
            ask(subject, problem, Asking(wants=()))
        subject.known[key] = watcher.lines
    found: Mapping[str, Place] = subject.known[key]
    return next((found[kind] for kind in kinds if kind in found), subject.place)
