"""Where an operation that raises has what it was given from: sizes that do not fit are often made elsewhere."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import OUTPUT, Diagnosis, Place, Point, RaisedOrigin, Trail
from nsa_doctor.core.torch_errors import TorchError, error_kind
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.model.perform import Conditions, perform
from nsa_doctor.probes.model.snapshot import Snapshot
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.tensors.operations import tensors_in
from nsa_doctor.subject.contract import Subject

_MOST_TRAILS = 3
_MOST_LINES = 3


def locate_raise(subject: Subject, point: Point, conditions: Conditions) -> Diagnosis:
    """Make the call at a point that raises once more; nothing is known where it returns then."""
    raised = _origin(subject, lambda watch: perform(subject, point, conditions, watch))
    return Diagnosis(point=point, target=OUTPUT, raised=raised)


def origin_of_call(subject: Subject, snapshot: Snapshot) -> RaisedOrigin:
    """Make a call that raises once more, from its snapshot, and say the same of it."""

    def call(watch: "_Givers") -> None:
        module, args, kwargs = snapshot.again()
        watch.know(module)
        with torch.set_grad_enabled(snapshot.has_grad), watch.phase("forward"):
            getattr(subject, snapshot.seam)(module, *args, **kwargs)

    return _origin(subject, call)


def _origin(subject: Subject, call: Callable[["_Givers"], object]) -> RaisedOrigin:
    places = Places(FrameFilter(subject.packages))
    watch = _Givers(places)
    with preserved_state(), unobserved(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended = attempt(lambda: call(watch))
    if not isinstance(ended, Caught):
        return RaisedOrigin()
    error = ended.error.caught.error if isinstance(ended.error, SubjectFailedError) else ended.error
    given = watch.trails() if error is watch.error else ()
    return RaisedOrigin(called_at=places.caller_of_traceback(error.__traceback__), given=given)


class _Givers(TorchFunctionMode):
    """Follows which lines made each tensor and of what; `error` is what the last function raised that did."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self._places = places
        self._raised_at = Place()
        self._given: list[Tensor] = []
        self._module: nn.Module | None = None
        # Alive, or another tensor would get its number.
        self._made: dict[int, tuple[Tensor, Trail, list[Tensor]]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Follow the calls of forward: torch looks at none within backward, and classes tell who makes a module."""
        if name != "forward":
            yield
            return
        with self, self._places.watching():
            yield

    def know(self, module: nn.Module, x: Tensor | None = None) -> None:
        """Learn the names of the subject's modules."""
        self._places.know(module)
        self._module = module

    def follow(self, output: Tensor) -> None:
        """Follow nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function; what it raises goes on."""
        given = tensors_in(args, kwargs or {})
        try:
            result = func(*args, **(kwargs or {}))
        except Exception as error:
            if error is not self.error:  # the innermost function is the first to raise it
                self.error, self._given, self._raised_at = error, given, self._places.here()[0]
            raise
        made = [each for each in tensors_in(result) if id(each) not in self._made and not _is_in(each, given)]
        if made:
            here, calling = self._places.here()[0], self._places.calling()
            lines = (here,) if calling is None else (calling, here)
            self._made.update((id(each), (each, lines, given)) for each in made)
        return result

    def trails(self) -> tuple[Trail, ...]:
        """Of each thing that the function which raised was given, the last lines that gave it its shape, or values."""
        is_of_values = error_kind(str(self.error)) is TorchError.INDEX_OUT_OF_RANGE
        found = [self._trail(each, is_of_values) for each in self._operands()]
        return tuple(dict.fromkeys(trail for trail in found if trail))[:_MOST_TRAILS]

    def _operands(self) -> Iterator[Tensor]:
        """What the line that raised was given: through what it has made of that itself."""
        waiting, seen = list(self._given), set[int]()
        while waiting:
            each = waiting.pop(0)
            if id(each) in seen:
                continue
            seen.add(id(each))
            _, lines, given = self._made.get(id(each), (each, (), []))
            if lines and lines[-1].line_text == self._raised_at.line_text:
                waiting[:0] = given
            else:
                yield each

    def _trail(self, tensor: Tensor, is_of_values: bool) -> Trail:
        found: list[Place] = []
        seen: set[int] = set()
        waiting = [tensor]
        while waiting and id(waiting[0]) not in seen and len(found) < _MOST_LINES:
            each = waiting[0]
            seen.add(id(each))
            _, lines, given = self._made.get(id(each), (each, self._maker_of(each), []))
            alike = [one for one in given if one.shape == each.shape]
            if is_of_values or not alike:
                known = [place.line_text for place in found]
                other = lines[-1:] if lines and self._is_beside_raise(lines[-1]) else lines
                found[:0] = [place for place in other if place.file and place.line_text not in known]
            waiting = alike or sorted(given, key=Tensor.numel, reverse=True)
        return tuple(found[-_MOST_LINES:])

    def _is_beside_raise(self, place: Place) -> bool:
        """Whether a line is of the function that raised: who called that is known."""
        raised = self._raised_at
        return (place.file, place.function) == (raised.file, raised.function)

    def _maker_of(self, tensor: Tensor) -> Trail:
        """The line of a class of the subject that makes the parameter or buffer, or the layer which holds it."""
        if self._module is None:
            return ()
        modules = dict(self._module.named_modules())
        held = (*self._module.named_parameters(), *self._module.named_buffers())
        path = next((name for name, each in held if each is tensor), "")
        while path:
            path, _, name = path.rpartition(".")
            holder = modules.get(path)
            if holder is None or type(holder).__module__.startswith("torch."):
                continue
            line, kind = line_that_makes(holder, name), type(holder).__name__
            if line is not None:
                return (Place(module=path, module_class=kind, file=line.file, line=line.line, function=line.function),)
        return ()


def _is_in(tensor: Tensor, given: Sequence[Tensor]) -> bool:
    return any(tensor is each for each in given)
