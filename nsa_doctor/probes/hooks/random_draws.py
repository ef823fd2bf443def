"""Which line of the subject draws random numbers from torch's generators."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.subject.contract import Subject


def first_draw(subject: Subject, module: nn.Module, call: Callable[[], object]) -> Place:
    """Where the call first runs an operation that draws; the module itself where none of torch's does."""
    places = Places(FrameFilter(subject.packages))
    places.know(module)
    watcher = _Watcher(places)
    with watcher, places.watching():
        call()
    found = watcher.place
    return definition_place(module) if found is None or not found.file else found


class _Watcher(DispatchWatcher):
    def __init__(self, places: Places) -> None:
        super().__init__()
        self.place: Place | None = None
        self._places = places

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; the first that its schema marks as drawing is kept."""
        if self.place is None and torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            self.place = self._places.here()[0]
        return func(*args, **kwargs)
