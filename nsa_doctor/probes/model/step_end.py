"""Where a training step that asked for gradients came to its end without stepping."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places, in_subject
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.model.training import take_step


def end_of_step(sp: BuiltModule, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> Place:
    """The line on which the function that called backward returned, in one more step; no line if none was seen."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    ending = _Ending(places)
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
    def __init__(self, places: Places) -> None:
        self.place, self._caller = Place(), Place()
        self._places = places

    def see_backward(self, _leaf: torch.Tensor) -> None:
        """Backward runs in the thread that called it, on a CPU: the nearest line of the subject's called it."""
        self._caller = self._places.here()[0]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See functions return, until the region ends."""
        with calls_seen_by(self._see):
            yield

    def _see(self, frame: FrameType, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event == "return" and (code.co_filename, code.co_name) == (self._caller.file, self._caller.function):
            self.place = self._places.of_frame(frame) or self.place
