"""Times passes of a subject: on the CPU by the time its thread computes, so that other load disturbs little."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import torch

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frames_of_threads
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.subject.contract import Subject

_SAMPLE_SECONDS = 0.002
_Position = TypeVar("_Position", bound=Hashable)


class Stopwatch:
    """Passes of one module, forward and in training backward too, timed one by one."""

    def __init__(self, subject: Subject, mode: Mode, *, is_wall: bool = False) -> None:
        self.subject, self.mode = subject, mode
        self._built_beside = built(subject, mode=mode, is_randomised=False)
        self.module, self._is_wall = self._built_beside.module, is_wall
        self._device = torch.device(subject.device)

    def seconds(self, length: int, repeats: int = 1, batch: int = 1) -> list[float]:
        """Time of each of `repeats` passes at one length."""
        x = self._built_beside.input(length, batch)
        found = []
        for _ in range(repeats):
            start = self._now()
            self._pass(x)
            found.append(self._now() - start)
            self._built_beside.module.zero_grad(set_to_none=True)
        return found

    def hottest(self, length: int) -> Place:
        """The subject's line that runs most of the time at one length, by looking every few milliseconds."""
        x = self._built_beside.input(length)
        places = Places(FrameFilter(self.subject.packages))
        places.know(self._built_beside.module)
        with places.watching(), sampled(places.of_watched_frame) as seen:
            self._pass(x)
        return seen.most_common(1)[0][0] if seen else Place()

    def _pass(self, x: torch.Tensor) -> None:
        with torch.set_grad_enabled(self.mode != "no_grad"):
            output = self._built_beside(x)
            if self.mode == "train" and output.requires_grad:
                loss = (output * make_cotangent(output, self.subject.seed)).sum()
                ask("backward", loss.backward, self._built_beside.module, output)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return time.perf_counter()
        return time.perf_counter() if self._is_wall else time.thread_time()


@contextmanager
def sampled(tell: Callable[[FrameType], _Position | None]) -> Iterator[Counter[_Position]]:
    """Counts what `tell` says of where this thread stands, every few milliseconds until the region ends.

    It is called in another thread: it must leave local variables alone.
    """
    seen: Counter[_Position] = Counter()
    ended, watched = threading.Event(), threading.get_ident()

    def look() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            frame = frames_of_threads().get(watched)
            position = None if frame is None else tell(frame)
            if position is not None:
                seen[position] += 1

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()
