"""Watches the operations of one pass, for `perform`: in which phase it is, and where the code now running stands."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.tracer import NodePlaces
from nsa_doctor.probes.internal import DispatchWatcher


class PassWatcher(DispatchWatcher):
    """Sees every operation of forward and backward, and no other."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        super().__init__()
        self._places = Places(FrameFilter(packages))
        self._nodes = NodePlaces()
        self._phase = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Watch one phase, unless it is building."""
        self._phase = name
        if name == "build":
            yield
            return
        with self, self._places.watching():
            yield

    def know(self, module: nn.Module, x: Tensor) -> None:
        """Learn the modules' names."""
        self._places.know(module)

    def follow(self, output: Tensor) -> None:
        """Nothing to follow."""
