"""Notices once a second that this process compiles: a thread's stack is in a compiler, or a compiler runs below it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from nsa_doctor.core.compilers import PROGRAMS, CompilerFiles
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.hooks.stack_sampler import current_frames, outwards

_LOOK_SECONDS = 1.0
_LONGEST_TIMING = 20.0  # seconds in which one kernel is timed; what takes longer does not return
_FOREIGN_THREAD = "/threading.py"  # where the stack of a thread begins that Python code has started
_SUBJECTS = 3  # the rank of the subject's own code
_PROC = Path("/proc")


@dataclass
class CompileWatch:
    """Looks at the main thread, at autograd's and at processes below this one; `frames` tells the subject's own code.

    A line of the subject's own that a compiler has called is the subject's: a loop in it is no compilation. A kernel
    that is timed for long does not return, and a program of a compiler that uses no processor is not at work.
    """

    frames: Callable[[], FrameFilter]
    main: int
    files: CompilerFiles = field(default_factory=CompilerFiles.installed)
    clock: Callable[[], float] = time.monotonic
    _timed: tuple[FrameType | None, float] = (None, 0.0)
    _ticks: dict[int, int] = field(default_factory=dict)

    def follow(self, tell: Callable[[dict[str, Any]], object]) -> None:
        """Tell of every second in which something compiles, for ever."""
        while True:
            time.sleep(_LOOK_SECONDS)
            if what := self.look():
                tell({"event": "compiling", "what": what})

    def look(self) -> str:
        """What compiles now; empty where nothing does."""
        for thread, frame in current_frames().items():
            if found := self._in_stack(frame, is_main=thread == self.main):
                return found
        return self._below()

    def _in_stack(self, frame: FrameType, is_main: bool) -> str:
        """The compiler whose line is the first, from the innermost, that is a compiler's or the subject's."""
        stack = list(outwards(frame))
        if stack and not is_main and stack[-1].f_code.co_filename.endswith(_FOREIGN_THREAD):
            return ""
        for each in stack:
            name, work = self.files.work_of(each.f_code.co_filename, each.f_code.co_name)
            if work:
                return "" if work == "autotuning" and self._is_stuck(each) else name
            if self.frames().rank_of(each.f_code) == _SUBJECTS:
                return ""
        return ""

    def _is_stuck(self, timing: FrameType) -> bool:
        """Whether this very timing of a kernel has gone on for too long."""
        if self._timed[0] is not timing:
            self._timed = (timing, self.clock())
        return self.clock() - self._timed[1] > _LONGEST_TIMING

    def _below(self) -> str:
        """A compiler's program below this process that has used a processor since the last look."""
        before, self._ticks = self._ticks, {}
        names = [self._at_work(pid, before) for pid in _below(os.getpid())]
        return next(filter(None, names), "")

    def _at_work(self, pid: int, before: dict[int, int]) -> str:
        with suppress(OSError, ValueError, IndexError):
            name, _, rest = (_PROC / str(pid) / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
            if name in PROGRAMS:
                words = rest.split()
                self._ticks[pid] = int(words[11]) + int(words[12])
                return name if self._ticks[pid] != before.get(pid, 0) else ""
        return ""


def _below(pid: int) -> Iterator[int]:
    """The processes below one, as the kernel keeps them for each thread; none where it keeps no such list."""
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError):
                for child in map(int, (thread / "children").read_text().split()):
                    yield child
                    yield from _below(child)
