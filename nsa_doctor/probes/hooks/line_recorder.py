"""Writes down every line of the subject before it runs, where another process finds it after a sudden end."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.isolation.shared_record import FILE_BYTES, TRAIL, SharedRecord
from nsa_doctor.probes.hooks.phase import Phases
from nsa_doctor.probes.hooks.stack_sampler import Sighting, StackSampler, context_of

_OWN = 3  # rank of the subject's own code


class LineRecorder:
    """Keeps the line about to run on a page that outlives the process. Slow: for a second try alone."""

    def __init__(self, sampler: StackSampler, page: SharedRecord) -> None:
        self._lookout = sampler
        self._page = page
        self._ranks: dict[CodeType, int] = {}
        self._frames = sampler.frames

    def begin(self) -> None:
        """Follow this thread from the next call on."""
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        """What Python is to tell of a new frame: nothing, unless the subject's code runs there."""
        following = attempt(lambda: self._following(frame))  # what a tracer raises would come out of the subject
        return None if isinstance(following, Caught) else following

    def _following(self, frame: FrameType) -> Any:
        if (context := context_of(frame)) is not None:
            self._lookout.remember(context, frame)
        if not self._is_own(frame):
            return None
        phase = Phases.under_way.get(threading.get_ident(), "")

        def follow(frame: FrameType, event: str, arg: Any) -> Any:
            if event in ("line", "return"):
                attempt(lambda: self._write(frame if event == "line" else frame.f_back, phase))
            return follow

        return follow

    def _write(self, frame: FrameType | None, phase: str) -> None:
        """The line this frame is on; of a frame that called the subject's code, that of the subject's beyond it."""
        while frame is not None and not self._is_own(frame):
            frame = frame.f_back
        if frame is None:
            self._page.write(None)
            return
        place, is_exact = self._lookout.describe(frame, frame.f_lineno)
        self._page.write(Sighting(place=place, phase=phase, is_exact=is_exact).to_json())

    def _is_own(self, frame: FrameType) -> bool:
        if self._frames is not self._lookout.frames:  # more is known of the subject by now
            self._frames = self._lookout.frames
            self._ranks.clear()
        code = frame.f_code
        rank = self._ranks.get(code)
        if rank is None:
            rank = self._ranks[code] = self._frames.rank_of(code)
        return rank == _OWN


def record_lines(file: Path, packages: tuple[str, ...]) -> Callable[[nn.Module], None]:
    """Record the lines of this thread in a file from now on; returns what learns of modules, for the names of parts."""
    sampler = StackSampler(FrameFilter(packages))
    LineRecorder(sampler, SharedRecord(_pages(file), TRAIL)).begin()
    return sampler.know


def last_line(file: Path) -> Place:
    """Where the process that recorded its lines in this file was last; nowhere without a line."""
    record = SharedRecord(_pages(file), TRAIL).read() or {}
    return Place(**record.get("place", {}))


def _pages(file: Path) -> int:
    """The file, open and as long as its records need."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, FILE_BYTES)
    return descriptor
