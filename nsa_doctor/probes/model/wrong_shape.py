"""Where an output came to be of a shape that it should not have."""

from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.recording import Recording, record
from nsa_doctor.probes.internal import DispatchWatcher, tree_leaves
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.subject.contract import WrongOutputError


def place_of_wrong_shape(error: WrongOutputError, module: nn.Module) -> Place:
    """The line of the operation that lost tokens or took on more; failing that where the module's own method made it.

    The call is made once more. Nowhere where that does not return the like again.
    """
    if error.asked is None:
        return Place()
    asked = error.asked
    places = Places(FrameFilter(asked.packages))
    places.know(module)

    methods = _Methods(places, module)

    def run() -> Tensor:
        with methods:
            leaves = tree_leaves(asked.again(module))
        return next(leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.shape == asked.shape)

    with preserved_state(), unobserved():
        recording = attempt(lambda: record(run, places))
    if isinstance(recording, Caught):
        return Place()
    number = _losing(recording, asked.length)
    if number == recording.output_maker and 0 <= number < len(methods.lines):
        return methods.lines[number] or recording.operations[number].place
    return recording.operations[number].place if number >= 0 else Place()


class _Methods(DispatchWatcher):
    """For each operation the line of the module's own method that is under way, which returns what is made of it."""

    def __init__(self, places: Places, module: nn.Module) -> None:
        super().__init__()
        self.lines: list[Place | None] = []
        self._places, self._module = places, module

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, and look."""
        self.lines.append(self._places.of_method(self._module))
        return func(*args, **kwargs)


def _losing(recording: Recording, length: int) -> int:
    """The last operation on the way to the output that reads what has a dimension of that size, and gives none."""
    made = recording.operations

    def has_all(number: int) -> bool:
        return any(length in each.shape for each in made[number].results)

    waiting, seen, found = [recording.output_maker], set[int](), list[int]()
    while waiting:
        number = waiting.pop()
        if number < 0 or number in seen:
            continue
        seen.add(number)
        if not has_all(number):
            makers = [maker for maker in made[number].makers if maker >= 0]
            if any(map(has_all, makers)):
                found.append(number)
            waiting += makers
    return max(found, default=recording.output_maker)
