"""Which line of the subject's source, in which module, made a tensor that it gave back."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, schema_of
from nsa_doctor.subject.contract import Subject


def origin(subject: Subject, module: nn.Module, call: Callable[[], Any], name: str | None = None) -> Place:
    """Where the tensor that `call` returns (the first one, or the one of that name) was computed last.

    Operations that only look at a tensor another way do not count. The module itself where no operation made it.
    """
    places = Places(FrameFilter(subject.packages))
    places.know(module)
    watcher = _Watcher(places)
    with watcher, places.watching():
        answer = call()
    tensor = _tensor_of(answer, name)
    place = None if tensor is None else watcher.made.get(memory_of(tensor))
    if place is None or not place.file:
        return definition_place(module)
    if not place.module_class:
        place = places.owner(place)
    return place if place.module_class else _within(place, module)


class _Watcher(DispatchWatcher):
    def __init__(self, places: Places) -> None:
        super().__init__()
        self.made: dict[int, Place] = {}
        self._places = places
        self._alive: list[Tensor] = []  # or memory would be given to another tensor

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note where its result was made, or written to."""
        result = func(*args, **kwargs)
        given = {memory_of(value) for value in args if isinstance(value, Tensor)}
        is_mutable = getattr(schema_of(func), "is_mutable", False)
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor) and (memory_of(tensor) not in given or is_mutable):
                place, is_own = self._places.here()
                self._alive.append(tensor)
                if is_own or memory_of(tensor) not in self.made:
                    self.made[memory_of(tensor)] = place
        return result


def _tensor_of(answer: Any, name: str | None) -> Tensor | None:
    if isinstance(answer, Tensor):
        return answer
    if name is not None and isinstance(answer, Mapping):
        return _tensor_of(answer.get(name), None)
    parts: Iterable[Any] = answer.values() if isinstance(answer, Mapping) else answer
    if not isinstance(answer, (tuple, list, Mapping)):
        return None
    return next((found for part in parts if (found := _tensor_of(part, None)) is not None), None)


def _within(place: Place, module: nn.Module) -> Place:
    """The place, with the subject as its module where no module was running."""
    return Place(module_class=type(module).__name__, file=place.file, line=place.line, function=place.function)
