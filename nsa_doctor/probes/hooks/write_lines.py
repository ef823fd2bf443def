"""Where tensors are written into, by the line of the subject that does so first."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.tensors.operations import tensors_in, written_arguments


class WriteLines(DispatchWatcher):
    """Follows what is written into some tensors, by their memory."""

    def __init__(self, tensors: Iterable[Tensor], places: Places) -> None:
        super().__init__()
        self._lines: dict[int, tuple[Place, Place | None]] = {}
        self._memory, self._places = {memory_of(tensor) for tensor in tensors}, places

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        for tensor in tensors_in(written_arguments(func, args, kwargs)):
            if (at := memory_of(tensor)) in self._memory and at not in self._lines:
                self._lines[at] = self._places.here()[0], self._places.calling(of_methods=True)
        return func(*args, **kwargs)

    def line_of(self, tensor: Tensor) -> Place:
        """Where it was first written into; nowhere where that was not seen."""
        return self._lines.get(memory_of(tensor), (Place(), None))[0]

    def call_of(self, tensor: Tensor) -> Place:
        """Where the method that wrote into it was called, or else the line itself; nowhere where that was not seen."""
        line, call = self._lines.get(memory_of(tensor), (Place(), None))
        return call or line
