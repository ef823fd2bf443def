"""Finds the operation that writes into a tensor a call was given."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nsa_doctor.frames import FrameFilter
from nsa_doctor.probes.divergence import Divergence
from nsa_doctor.probes.operations import operation_name
from nsa_doctor.probes.places import Places, definition_place
from nsa_doctor.probes.specimen import Specimen


def first_write(specimen: Specimen, x: Tensor) -> Divergence:
    """Call the subject with this very tensor: the operation after which its values first differ.

    The subject itself when no operation of torch's is to blame.
    """
    places = Places(FrameFilter(specimen.subject.packages))
    places.know(specimen.module)
    watcher = _Watcher(x, places)
    with torch.no_grad(), places.watching(), watcher:
        specimen.call(x)
    return watcher.found or Divergence("", definition_place(specimen.module))


class _Watcher(TorchDispatchMode):
    """Looks at a tensor after every operation. A dispatch mode is a base class by torch's design."""

    def __init__(self, x: Tensor, places: Places) -> None:
        super().__init__()
        self.found: Divergence | None = None
        self._x, self._kept, self._places = x, x.clone(), places

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping it would import all of it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation, then compare."""
        result = func(*args, **(kwargs or {}))
        if self.found is None and not torch.equal(self._x, self._kept):
            self.found = Divergence(operation_name(func), self._places.here()[0])
        return result
