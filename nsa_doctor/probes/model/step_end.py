"""Where a training step that asked for gradients came to its end without stepping."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places, in_subject
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.model.training import take_step

_OWN = 3  # the rank of the subject's own code


def end_of_step(sp: BuiltModule, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> Place:
    """The line on which the function that called backward returned, in one more step; no line if none was seen."""
    frames = FrameFilter(sp.subject.packages)
    places = Places(frames)
    places.know(sp.module)
    ending = _Ending(frames, places)
    leaves = [each for each in sp.module.parameters() if each.requires_grad and each.is_leaf]
    hooks = [each.register_post_accumulate_grad_hook(ending.see_backward) for each in leaves]
    try:
        with ending.watching(), preserved_state(), torch.enable_grad():
            attempt(lambda: take_step(sp, optimizer, x))
    finally:
        for hook in hooks:
            hook.remove()
    return in_subject(ending.place, sp.module)


class _Ending:
    def __init__(self, frames: FrameFilter, places: Places) -> None:
        self.place = Place()
        self._frames, self._places = frames, places
        self._caller: CodeType | None = None

    def see_backward(self, _leaf: torch.Tensor) -> None:
        """Backward runs in the thread that called it, on a CPU: the nearest line of the subject's called it."""
        frame: FrameType | None = frame_above(0)
        while frame is not None and self._frames.rank_of(frame.f_code) < _OWN:
            frame = frame.f_back
        self._caller = None if frame is None else frame.f_code

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See functions return, until the region ends."""
        before = sys.getprofile()
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _see(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "return" and frame.f_code is self._caller:
            self.place = self._places.of_frame(frame) or self.place
