"""Where an operation that raises has what it was given from: sizes that do not fit are often made elsewhere."""

import math
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
_MOST_STEPS = 1000  # from one tensor to what it was made of


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
    given = attempt(watch.trails) if error is watch.error else ()  # what it was given may be an object of any kind
    called_at = places.caller_of_traceback(error.__traceback__)
    trails = () if isinstance(given, Caught) else given
    others = tuple(trail for trail in trails if [each.line_text for each in trail] != [called_at.line_text])
    return RaisedOrigin(called_at=called_at, given=others)


@dataclass(eq=False)
class _Made:
    """What is known of a tensor, which need not be alive: its shape, and the lines that made it of what others.

    One that no function made in the region, as a parameter, is `found` there.
    """

    shape: tuple[int, ...]
    lines: Trail = ()
    given: "tuple[_Made, ...]" = ()
    found: Tensor | None = None


class _Givers(TorchFunctionMode):
    """Follows which lines made each tensor and of what; `error` is what the last function raised that did."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self._places = places
        self._raised_at = Place()
        self._handed_on: Place | None = None
        self._given: tuple[_Made, ...] = ()
        self._module: nn.Module | None = None
        self._input: Tensor | None = None
        self._known: dict[int, tuple[weakref.ref[Tensor], _Made]] = {}

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
        self._module, self._input = module, x

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
                self.error, self._raised_at = error, self._places.here()[0]
                self._handed_on = self._entry()
                found = attempt(lambda: tuple(map(self._of, given)))
                self._given = () if isinstance(found, Caught) else found
            raise
        attempt(lambda: self._note(result, given))  # of a tensor of a kind of its own nothing may be known
        return result

    def _note(self, result: Any, given: Sequence[Tensor]) -> None:
        made = [
            each for each in tensors_in(result) if not any(each is one for one in given) and not self._is_known(each)
        ]
        if not made:
            return
        here, is_own = self._places.here()
        calling = self._places.calling(of_methods=True)
        lines = () if not is_own else ((here,) if calling is None else (calling, here))
        of = tuple(map(self._of, given))
        for each in made:
            self._known[id(each)] = weakref.ref(each), _Made(tuple(each.shape), lines, of)

    def _is_known(self, tensor: Tensor) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and known[0]() is tensor

    def _of(self, tensor: Tensor) -> _Made:
        if not self._is_known(tensor):
            self._known[id(tensor)] = weakref.ref(tensor), _Made(tuple(tensor.shape), found=tensor)
        return self._known[id(tensor)][1]

    def trails(self) -> tuple[Trail, ...]:
        """Of each thing that the function which raised was given, the last lines that gave it its shape, or values."""
        is_of_values = (
            self.error is not None and error_kind(Caught(self.error).sentence) is TorchError.INDEX_OUT_OF_RANGE
        )
        found: dict[Trail, None] = {}
        for each in self._operands():
            found |= {trail: None for trail in [self._trail(each, is_of_values)] if trail}
            if len(found) == _MOST_TRAILS:
                break
        return tuple(each for each in found if not any(other[: len(each)] == each for other in found if other != each))

    def _operands(self) -> Iterator[_Made]:
        """What the line that raised was given: through what it has made of that itself."""
        waiting, seen = list(self._given), set[_Made]()
        while waiting:
            each = waiting.pop(0)
            if each in seen:
                continue
            seen.add(each)
            if each.lines and each.lines[-1].line_text == self._raised_at.line_text:
                waiting[:0] = each.given
            else:
                yield each

    def _trail(self, made: _Made, is_of_values: bool) -> Trail:
        found: list[Place] = []
        seen: set[_Made] = set()
        waiting: Sequence[_Made] = [made]
        while waiting and waiting[0] not in seen and len(found) < _MOST_LINES and len(seen) < _MOST_STEPS:
            each = waiting[0]
            seen.add(each)
            alike = [one for one in each.given if one.shape == each.shape]
            if is_of_values or not alike:
                lines = each.lines if each.found is None else self._maker_of(each.found)
                known = [place.line_text for place in found]
                other = lines[-1:] if lines and self._is_beside_raise(lines[-1]) else lines
                found[:0] = [place for place in other if place.file and place.line_text not in known]
            waiting = alike or sorted(each.given, key=lambda one: math.prod(one.shape), reverse=True)
        if not found and self._handed_on is not None and self._is_input_alone(made):
            return (self._handed_on,)
        return tuple(found[-_MOST_LINES:])

    def _is_beside_raise(self, place: Place) -> bool:
        """Whether a line is of the function that raised: who called that is known."""
        raised = self._raised_at
        return (place.file, place.function) == (raised.file, raised.function)

    def _entry(self) -> Place | None:
        """Where the subject hands on what it is given, unless that calls the function which raised: that is said."""
        entry = None if self._module is None else self._places.of_method(self._module)
        caller = self._places.calling(of_methods=True)
        return None if entry is None or (caller is not None and caller.line_text == entry.line_text) else entry

    def _is_input_alone(self, made: _Made) -> bool:
        """Whether it is the input, or made of nothing but that."""
        waiting, seen = [made], set[_Made]()
        while waiting and len(seen) < _MOST_STEPS:
            each = waiting.pop()
            if each.found is not None and not self._is_input(each.found):
                return False
            waiting += [one for one in each.given if one not in seen]
            seen.add(each)
        return not waiting and any(each.found is not None for each in seen)

    def _is_input(self, tensor: Tensor) -> bool:
        x = self._input
        return x is not None and tensor.dtype == x.dtype and torch.equal(tensor, x)  # a copy is what it is given

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
