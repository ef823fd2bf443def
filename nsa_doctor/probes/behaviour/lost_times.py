"""Times whose digits a model loses: it means to read their differences alone, and rounds them before it takes these.

All times are whole multiples of half a unit, so that sums, differences and float32 hold them exactly wherever the model
has no reason to round: what changes far from zero, and not where gaps are wide enough for float32 there, is rounding.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.optional_arguments import words_of
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.hooks.recording import Operation, Recording
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.divergence import recording_of

_TIMES = frozenset(
    {
        *("t", "ts", "time", "times", "timestamp", "timestamps", "stamp", "stamps", "date", "dates", "datetime"),
        *("datetimes", "seconds", "timepoint", "timepoints", "clock", "when"),
    }
)
_OF_TIMES = frozenset(  # words of what is no time of its own
    {
        *("delta", "deltas", "dt", "diff", "diffs", "gap", "gaps", "interval", "intervals", "since", "elapsed"),
        *("id", "ids", "idx", "index", "emb", "embed", "embedding", "embeddings", "encoding", "feature", "features"),
        *("mask", "scale", "max", "min", "limit", "horizon", "span", "origin", "start", "end", "step", "steps", "bias"),
    }
)
_ANY_NUMBER = ("t", "ts")
_SMALL = re.compile(
    r"since (?!1970|the epoch)\w+|relative|elapsed|ind(ex|ices)|normali[sz]ed|hours|days|frames?|at most \d+|\[0, ?1\]",
    re.IGNORECASE,
)
_GAPS = (0.5, 1.0, 2.0, 1.5, 2.5)  # in turn: so many multiples of a half that few tokens stay below 32
_UNITS = (1.0, 4096.0)  # of times: a model of hours may be given seconds
_NEAR = (64.0, 2.0**14)  # shifts, in units, behind which float32 holds all digits
FAR = 2.0**30  # where float32 has steps of 128
_COARSE = 2.0**14  # times as wide gaps
_EFFECT, _LOST, _SAME = 1e-3, 0.1, 0.02
_ROUNDINGS = 64
_FINE = 1e4
_CANCELLED = 1e-3
_WIDE = (torch.float64, torch.int64)
_SHAPES: tuple[Callable[[Tensor], Tensor], ...] = (lambda times: times, lambda times: times[..., None])
Ask = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LostDigits:
    """An argument, by how much the answer changes far from zero, and by how much nearer; where digits are lost."""

    name: str
    unit: float
    difference: float
    near: float
    operation: str
    place: Place


def arguments_of_times(function: Callable[..., Any]) -> list[str]:
    """The arguments of a function that by their names are times, optional ones and those that it asks for."""
    parameters = attempt(lambda: inspect.signature(function).parameters)
    return [
        name
        for name, each in list(() if isinstance(parameters, Caught) else parameters.items())[1:]  # behind the input
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        and (each.default is None or each.default is each.empty)
        and _TIMES & words_of(name)
        and not _OF_TIMES & words_of(name)
    ]


def why_small(module: nn.Module, name: str) -> str:
    """Why such times may well be small numbers: the words about them in docstrings, or a name that says no more."""
    if name.lower() in _ANY_NUMBER:
        return f"{name} may be any number"
    texts = (inspect.getdoc(each) or "" for each in (type(module), module.forward))
    lines = (line for text in texts for line in text.splitlines() if re.search(rf"\b{re.escape(name)}\b", line))
    said = next((found for line in lines if (found := _SMALL.search(line))), None)
    return f"its docstring says {said[0]!r} of {name}" if said else ""


def lost_digits(sp: BuiltModule, name: str, x: Tensor, ask: Ask, taken: list[str]) -> LostDigits | None:
    """What is lost of an argument with which `ask` calls the module for x [B, S, ...].

    `taken` gets its name where a value of it was found that is taken and that matters.
    """
    for form in _kinds(x):
        if isinstance(attempt(lambda form=form: ask(form(1.0, 0.0))), Tensor):
            trials = (_Trial(sp, ask, form, unit) for unit in _UNITS)
            found = (attempt(partial(trial.found, name, taken)) for trial in trials)
            return next((each for each in found if isinstance(each, LostDigits)), None)
    return None


Times = Callable[..., Tensor]


def _kinds(x: Tensor) -> Iterator[Times]:
    """Times of each form that may be taken: of each token, floating-point numbers first."""
    for dtype in _WIDE:
        for shaped in _SHAPES:
            yield partial(_times, x, dtype, shaped)


def _times(
    x: Tensor, dtype: torch.dtype, shaped: Callable[[Tensor], Tensor], scale: float, shift: float, turned: bool = False
) -> Tensor:
    """Ascending times, other in each row, or with the same gaps in the opposite order."""
    rows, length = x.shape[:2]
    gaps = torch.tensor(_GAPS, dtype=torch.float64)[
        (torch.arange(length)[None] + 2 * torch.arange(rows)[:, None]) % len(_GAPS)
    ]
    gaps[:, 1:] = gaps[:, 1:].flip(1) if turned else gaps[:, 1:]
    halves = 1 if dtype.is_floating_point else 2
    return shaped(gaps.cumsum(1) * halves * scale + shift).to(x.device, dtype)


@dataclass(frozen=True)
class _Trial:
    """Calls with times of one form and unit."""

    sp: BuiltModule
    ask: Ask
    form: Times
    unit: float

    def times(self, shift: float = 0.0, wide: float = 1.0, *, turned: bool = False) -> Tensor:
        """So many units later, with gaps so many times as wide."""
        return self.form(self.unit * wide, self.unit * shift, turned=turned)

    def answer(self, shift: float = 0.0, wide: float = 1.0, *, turned: bool = False) -> Tensor:
        return self.ask(self.times(shift, wide, turned=turned))

    def found(self, name: str, taken: list[str]) -> LostDigits | None:
        """What is lost; `taken` gets the name where times of this unit matter."""
        plain = self.answer()
        effect = _apart(plain, self.answer(turned=True))
        if not effect >= _EFFECT * float(plain.abs().max()):
            return None
        taken.append(name)
        least = _rounding(self.sp, plain) + _SAME * effect
        far = self.answer(FAR)
        difference = _apart(plain, far)
        if not (math.isfinite(difference) and difference >= _LOST * effect):
            return None
        near = max(_apart(plain, self.answer(shift)) for shift in _NEAR)
        if not near <= least:
            return None
        recording = recording_of(self.sp, lambda: self.answer(FAR))
        rounded = next((each for each in recording.operations if each.place.file and _is_lossy(each)), None)
        if not self._keeps_wide_gaps():  # it adds a constant to them, say
            is_blind = _apart(far, self.ask(_of_float32(self.times(FAR)))) <= _rounding(self.sp, far)
            if rounded is None or not is_blind or not _is_taken_from(rounded, recording):
                return None
        name_of, place = ("", definition_place(self.sp.module)) if rounded is None else (rounded.name, rounded.place)
        return LostDigits(name, self.unit, difference, near, name_of, place)

    def _keeps_wide_gaps(self) -> bool:
        """Whether gaps that float32 holds far from zero give the same there as near it."""
        near, far, turned = (
            self.answer(0.0, _COARSE),
            self.answer(FAR, _COARSE),
            self.answer(0.0, _COARSE, turned=True),
        )
        return _apart(near, far) <= _rounding(self.sp, near) + _SAME * _apart(near, turned)


def _of_float32(times: Tensor) -> Tensor:
    return times.float().to(times.dtype)


def _apart(one: Tensor, other: Tensor) -> float:
    """How far two answers are apart; infinite where they are of other shapes or not numbers."""
    if one.shape != other.shape:
        return math.inf
    difference = float((one.detach().double() - other.detach().double()).abs().max())
    return math.inf if math.isnan(difference) else difference


def _rounding(sp: BuiltModule, answer: Tensor) -> float:
    eps = max(torch.finfo(dtype).eps for dtype in (answer.dtype, getattr(torch, sp.dtype)))
    return _ROUNDINGS * eps * float(answer.abs().max())


def _is_lossy(operation: Operation) -> bool:
    """Whether it makes numbers of few digits, and far fewer of them, of such with more digits."""
    made = [each for each in operation.results if each.is_floating_point() and each.element_size() < 8]
    read = [each for _, each in operation.read if each.dtype in _WIDE]
    return any(2 * len(few.unique()) <= _num_apart(many) for few in made for many in read if few.shape == many.shape)


def _is_taken_from(rounded: Operation, recording: Recording) -> bool:
    """Whether something as large as what was rounded is subtracted from it, or from what comes of it, in its dtype."""
    large = float(rounded.results[0].abs().max())
    return any(
        len(each.read) == 2
        and each.name.rstrip("_") in ("sub", "rsub")
        and all(
            read.numel() and read.element_size() < 8 and float(read.abs().max()) >= large / 2 for _, read in each.read
        )
        and all(float(made.abs().max()) <= large * _CANCELLED for made in each.results if made.numel())
        for each in recording.operations
    )


def _num_apart(values: Tensor) -> int:
    """How many values there are, of which those that are apart by rounding alone are one."""
    if values.numel() < 2:
        return values.numel()
    offsets = (values - values.min()).double()
    return len((offsets / offsets.max().clamp_min(1e-300) * _FINE).round().unique())
