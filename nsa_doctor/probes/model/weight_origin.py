"""Where a parameter gets its values while its module is built, and whether these are drawn or come from elsewhere."""

from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, part_at
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.tensors.operations import operation_name, overwrites, tensors_in, written_arguments
from nsa_doctor.subject.contract import Subject

_DRAWING = frozenset(
    {
        *("normal_", "uniform_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "random_"),
        *("normal", "normal_functional", "uniform", "rand", "randn", "rand_like", "randn_like", "bernoulli"),
    }
)
_STEPPING = frozenset({"add_", "sub_", "addcdiv_", "addcmul_", "lerp_"})  # of other tensors: an optimizer
_COPYING = frozenset({"to_copy", "clone", "copy_"})
_OWN = 3  # the rank of a frame of the subject's own code


@dataclass(frozen=True)
class WeightOrigin:
    """The line that last writes a parameter, or that calls the function which does; no place where none was seen.

    `is_drawn` says that its values are random ones, scaled and cut at most: not loaded, copied or trained.
    """

    place: Place | None
    is_drawn: bool


def origin_of(subject: Subject, name: str) -> WeightOrigin:
    """The origin of the parameter of that name, seen in building the subject once more."""
    watch = _Writes(FrameFilter(subject.packages))
    seed_everything(subject.seed)
    with watch:
        module = _built(subject)
    parameter = dict(module.named_parameters()).get(name)
    if parameter is None:
        return WeightOrigin(None, is_drawn=False)
    memory, path = memory_of(parameter), name.rpartition(".")[0]
    place = watch.places.get(memory)
    if place is not None:
        place = replace(place, module=path, module_class=type(part_at(module, path)).__name__)
    return WeightOrigin(place, memory in watch.drawn)


def _built(subject: Subject) -> nn.Module:
    return ask("build", lambda: subject.build(subject.seed), None)


class _Writes(DispatchWatcher):
    """Follows what is drawn, and notes which line last wrote each piece of memory."""

    def __init__(self, frames: FrameFilter) -> None:
        super().__init__()
        self.places: dict[int, Place] = {}
        self.drawn: dict[int, Tensor] = {}  # held, or their memory would be given to what is loaded
        self._frames, self._at = frames, Places(frames)

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what it writes, and where it is called."""
        given = {memory_of(each) for each in tensors_in(args, kwargs)}
        changed = {memory_of(each): each for each in tensors_in(*written_arguments(func, args, kwargs))}
        written = set(changed)
        result = func(*args, **kwargs)
        changed |= {memory: each for each in tensors_in(result) if (memory := memory_of(each)) not in given}
        if not changed:
            return result
        if self._is_drawn(func, given, written):
            self.drawn |= changed
        else:
            for memory in changed:
                self.drawn.pop(memory, None)
        copied = [self.places[each] for each in given - written if each in self.places]
        is_copy = operation_name(func) in _COPYING and copied
        place = copied[0] if is_copy else self._at.of_frame(self._line(frame_above(1)))
        if place is not None:
            self.places |= dict.fromkeys(changed, place)
        return result

    def _line(self, frame: FrameType) -> FrameType:
        """The innermost frame of the subject's own code; the one that calls it where it is given what it writes."""
        inner = self._own(frame) or frame
        code, held = inner.f_code, inner.f_locals
        given = [held.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
        is_method = bool(given) and isinstance(given[0], nn.Module) and hasattr(given[0], code.co_name)
        is_helper = not is_method and any(isinstance(each, (Tensor, nn.Module)) for each in given)
        outer = self._own(inner.f_back) if is_helper else None
        return outer or inner

    def _own(self, frame: FrameType | None) -> FrameType | None:
        """The first frame from here outwards that is the subject's own, none of them being the doctor's."""
        while frame is not None and self._frames.rank_of(frame.f_code) < _OWN:
            if frame.f_code.co_filename == __file__ and frame.f_code.co_name == "_built":
                return None
            frame = frame.f_back
        return frame

    def _is_drawn(self, func: Any, given: set[int], written: set[int]) -> bool:
        """Whether what an operation writes or makes is random values."""
        name, others = operation_name(func), given - written
        if name in _DRAWING:
            return True
        if name.startswith(("foreach_", "fused_")) or (others and name in _STEPPING):
            return False
        sources = others if overwrites(func) else given
        return bool(sources) and sources <= self.drawn.keys()
