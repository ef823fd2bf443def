"""Writes by an index that holds a place several times, of which what is written first is lost and then missing."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.watched_losses import watched_loss
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed, memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.tensors.answer import floating_parts
from nsa_doctor.probes.tensors.operations import tensors_in
from nsa_doctor.probes.tensors.written_places import Read, Write, read_of, write_of

_ADDING = frozenset({"add", "add_", "__add__", "__iadd__", "__radd__"})
_TAKING_OFF = frozenset({"sub", "sub_", "__sub__", "__isub__"})
_SCALING = frozenset({"mul", "mul_", "__mul__", "__imul__", "__rmul__", "div", "div_", "__truediv__", "lerp", "lerp_"})
_SUMMING = frozenset({"sum", "div", "div_", "__truediv__", "__itruediv__", "cumsum", "normalize"})
_CHOOSING = frozenset({"randint", "randint_like"})
_DROPPING = re.compile(r"(feature_)?(alpha_)?dropout\d?d?_?")
_COUNTS = re.compile(
    r"(?<![a-z])(counts?|counter|degrees?|deg|hist|histogram|tally|freqs?|frequency|occurrences)(?![a-z])"
)
_LATEST = re.compile(  # of which the last is meant to stay, or any
    r"(?<![a-z])(last|latest|newest|recent|cached?|ring|buf|buffer|history|queue|any|is|has|seen|visited|present|flags?|masks?)(?![a-z])"
)
_TARGET = re.compile(r"\s*([\w.]+?)\s*(?:\[|\.\w+_?\()")


@dataclass(frozen=True)
class LostRepeats:
    """How a write says what it writes, how many values it loses of how many, and the line.

    `adds`: what is lost was added to what was there (`x[i] += v`).
    """

    function: str
    num_lost: int
    num_places: int
    adds: bool
    place: Place


@dataclass(frozen=True)
class _Seen:
    lost: LostRepeats
    instruction: tuple[str, int]
    answer: Tensor
    is_count: bool


def lost_repeats(sp: BuiltModule, call: Callable[[], Any]) -> list[LostRepeats] | Caught:
    """Those of one call whose lost values are missing in its answer, or in a buffer that it leaves."""
    state = ModuleState(sp.module, with_parameters=True)
    found = watched_loss(sp, call, _Watch)
    if isinstance(found, Caught):
        state.restore()
        return found
    watch, _ = found
    seen = {each.instruction: each for each in watch.seen if not each.is_count or id(each.answer) in watch.summed}
    first = _left(sp, found[1]) if seen else {}
    state.restore()
    return [each.lost for each in seen.values() if _is_missing(sp, call, each, first, state)]


def _is_missing(
    sp: BuiltModule, call: Callable[[], Any], seen: _Seen, first: dict[str, Tensor], state: ModuleState
) -> bool:
    """Whether the answer is another where the lost values are written too, and the same in a second call as it is."""
    answers = []
    for instruction in (None, seen.instruction):
        found = watched_loss(sp, call, lambda places, at=instruction: _Watch(places, at))
        answers.append({} if isinstance(found, Caught) else _left(sp, found[1]))
        state.restore()
    again, other = answers
    if not (first.keys() == again.keys() == other.keys()):
        return False
    is_steady = not any(_differ(each, again[name], 0.1) for name, each in first.items())
    return is_steady and any(_differ(each, other[name]) for name, each in first.items())


def _left(sp: BuiltModule, answer: Any) -> dict[str, Tensor]:
    """What a call answered and what it left in buffers."""
    buffers = {f"buffer {name}": each for name, each in sp.module.named_buffers()}
    found = {**floating_parts(answer), **buffers}
    return {name: each.detach().clone() for name, each in found.items() if each.layout == torch.strided}


def _differ(one: Tensor, other: Tensor, share: float = 1.0) -> bool:
    if one.shape != other.shape:
        return True
    if not one.numel() or one.is_complex():
        return False
    bound = share * _rounding(one.dtype) * float(one.double().abs().max())
    return float((one.double() - other.double()).abs().max()) > bound


def _rounding(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps ** 0.5) if dtype.is_floating_point else 0.0


class _Watch(TorchFunctionMode):
    """Looks at writes by an index, without dropout; a function mode is a base class by torch's design.

    What the instruction `mended` writes is changed: sums of what is added, else the mean of what there is for a place.
    """

    def __init__(self, places: Places, mended: tuple[str, int] | None = None) -> None:
        super().__init__()
        self.seen: list[_Seen] = []
        self.summed: set[int] = set()
        self._places, self._mended = places, mended
        self._drawn: dict[int, Tensor] = {}  # whole numbers, at random
        self._reads: dict[int, tuple[Tensor, Read, bool]] = {}  # by the identity of what was read or made of it

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and look at what it writes."""
        name, named = getattr(func, "__name__", ""), kwargs or {}
        if _DROPPING.fullmatch(name) and args:
            return args[0]
        if any(isinstance(each, Tensor) and is_transformed(each) for each in args[:1]):
            return func(*args, **named)
        with torch.no_grad():
            write = write_of(name, args, named)
            repeats = None if write is None else self._repeats(write)
        if write is not None and repeats is not None and self._mended == self._places.instruction():
            args, named = write.with_values(repeats.mended())
        is_mended = self._mended is not None
        lost = None if is_mended or repeats is None else self._lost(name, repeats)
        if lost is not None and not lost.adds and any(id(each) in self._drawn for each in tensors_in(args, named)):
            lost = None  # places at random, of which one may come again
        answer = func(*args, **named)
        if name in _CHOOSING:
            self._drawn[id(answer)] = answer
        if lost is not None:
            target = answer if isinstance(answer, Tensor) else args[0]
            self.seen.append(_Seen(lost, self._places.instruction(), target, repeats is not None and repeats.is_count))
        if name in _SUMMING and self.seen:
            self.summed |= {id(each) for each in args[:2]} & {id(each.answer) for each in self.seen}
        self._follow(name, args, named, answer)
        return answer

    def _follow(self, name: str, args: tuple[Any, ...], named: dict[str, Any], answer: Any) -> None:
        """Know what was read by an index, and what was added to it."""
        if not isinstance(answer, Tensor):
            return
        read = read_of(name, args, named)
        if read is not None:
            self._reads[id(answer)] = answer, read, False
        elif name in _ADDING | _TAKING_OFF | _SCALING:
            sides = args[:2] if name not in _TAKING_OFF else args[:1]
            known = next((self._reads[id(each)] for each in sides if id(each) in self._reads), None)
            if known is not None:
                self._reads[id(answer)] = answer, known[1], known[2] or name in _SCALING

    def _repeats(self, write: Write) -> "_Repeats | None":
        places = write.places.flatten()
        distinct, which, number = places.unique(return_inverse=True, return_counts=True)
        if len(distinct) == len(places) or write.values.is_complex() or write.values.dtype == torch.bool:
            return None
        known = self._reads.get(id(write.given))
        reads_same = known is not None and _is_same_place(known[1], write)
        is_scaled = reads_same and known is not None and known[2]
        return _Repeats(write, which, number, is_update=reads_same, adds=reads_same and not is_scaled)

    def _lost(self, name: str, repeats: "_Repeats") -> LostRepeats | None:
        place, is_own = self._places.here()
        source = self._places.source() if is_own else ""
        named = _TARGET.match(source)
        target = named.group(1).rpartition(".")[2].replace("_", " ").lower() if named else ""
        if not is_own or _LATEST.search(target) or not repeats.are_lost(is_counted=bool(_COUNTS.search(target))):
            return None
        return LostRepeats(name.strip("_"), repeats.num_lost, len(repeats.number), repeats.adds, place)


class _Repeats:
    """A write that holds some place several times: which of the places each value is for, and how many there are."""

    def __init__(self, write: Write, which: Tensor, number: Tensor, *, is_update: bool, adds: bool) -> None:
        self.number, self.adds, self.is_count = number, adds, False
        self._write, self._which, self._is_update = write, which, is_update
        old = write.target.detach().flatten()[write.places.flatten()]
        self._old, values = old, write.values.flatten()
        self._values = values - old if adds else values

    @property
    def num_lost(self) -> int:
        """How many values are written over."""
        return int((self.number - 1).sum())

    def are_lost(self, *, is_counted: bool) -> bool:
        """Whether what is lost is more than what is kept again.

        The same for each of them may be meant once, as a mark or a penalty is, but for ones that are added or counted.
        """
        values, given = self._values.double(), self._write.given
        if not bool(values.isfinite().all()):
            return False
        most = float(values.abs().max())
        if (self._spread(values) > _rounding(self._write.target.dtype) * most).any():
            is_learned = isinstance(given, Tensor) and given.requires_grad and given.is_floating_point()
            return most > 0 and (self._is_update or is_learned)
        repeated = values[self.number[self._which.flatten()] > 1]
        if bool((repeated == 1).all()) and not self._is_update:
            self.is_count = is_counted and bool((self._old == 0).all())
            self.adds = self.is_count
            return self.is_count
        return self.adds and most > 0 and (bool((repeated == 1).all()) or (is_counted and bool((repeated > 0).all())))

    def mended(self) -> Tensor:
        """What would be written for each place if nothing were lost."""
        values = self._values
        total = torch.zeros(len(self.number), dtype=values.dtype, device=values.device)
        total = total.index_add(0, self._which.flatten(), values)
        is_one = bool((values == 1).all())
        if not self.adds and not is_one:
            total = total / self.number if values.is_floating_point() else total
        whole = total[self._which.flatten()] + (self._old if self.adds else 0)
        whole = whole.view(self._write.places.shape).to(self._write.target.dtype)
        given = self._write.given
        if isinstance(given, Tensor) and given.requires_grad and given.shape == whole.shape:
            return given + (whole - given).detach()
        return whole

    def _spread(self, values: Tensor) -> Tensor:
        """How far apart the values for each place are."""
        which = self._which.flatten()
        first = torch.zeros(len(self.number), dtype=values.dtype, device=values.device)
        most = first.scatter_reduce(0, which, values, "amax", include_self=False)
        return most - first.scatter_reduce(0, which, values, "amin", include_self=False)


def _is_same_place(read: Read, write: Write) -> bool:
    """Whether what was read stood where is written."""
    one, other = read.source, write.target
    if memory_of(one) != memory_of(other) or one.shape != other.shape or one.stride() != other.stride():
        return False
    places = read.places() if one.storage_offset() == other.storage_offset() else None
    return places is not None and torch.equal(places, write.places)
