"""Optional arguments that are fractions by what is said and done with them, and of which a call reads whole numbers.

A time that counts steps is cast for a table, or to be on the safe side: what is cast here is used in arithmetic, and
the subject itself draws fractions, says that it lies between zero and one, or multiplies it by far more than one.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.blind_output import loss_between
from nsa_doctor.probes.behaviour.optional_arguments import giving, is_another, words_of
from nsa_doctor.probes.hooks.recording import Recording
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.identity import sources_beside
from nsa_doctor.probes.numerics.divergence import recording_of

_TIMES = frozenset({"t", "time", "times", "timestep", "timesteps", "level", "levels", "sigma", "sigmas", "progress"})
_TIMES_TOO = frozenset({"noise", "fraction", "alpha", "alphas", "strength", "tau", "lam", "lambda"})
_ALWAYS_FRACTIONS = frozenset({"sigma", "sigmas", "fraction", "progress"})
_ROUNDING = frozenset({"floor", "trunc", "floor_divide", "round"})
_LOOKING_UP = frozenset(
    {
        *("embedding", "gather", "index", "index_select", "take_along_dim", "scatter", "scatter_", "one_hot", "eq"),
        *("index_put", "index_put_", "take", "ne", "local_scalar_dense", "slice", "select"),
    }
)
_LOUD = 50.0  # times as large as the whole number that it is made of
_UNIT = r"(continuous|[\[(]\s*0(\.0*)?\s*,\s*1(\.0*)?\s*[\])]|between 0(\.0)? and 1|from 0(\.0)? to 1|0\s*\.\.\s*1)"
_DRAWN = r"torch\.(rand|rand_like|sigmoid)\(|\.uniform_\(|linspace\(\s*(1(\.0*)?\s*,\s*0|0(\.0*)?\s*,\s*1)(\.0*)?\s*,"


@dataclass(frozen=True)
class WholeTime:
    """An argument of whose fractions one call makes the same, where that is lost, and why fractions are meant."""

    name: str
    operation: str
    place: Place
    reason: str


def whole_times(sp: BuiltModule, x: Tensor, taken: list[str]) -> Iterator[WholeTime]:
    """Those of the module's optional arguments, tried with x [B, S, ...]; `taken` gets the names of those it takes."""
    parameters = attempt(lambda: inspect.signature(sp.module.forward).parameters)
    for name, parameter in {} if isinstance(parameters, Caught) else parameters.items():
        is_optional = parameter.default is None or type(parameter.default) in (int, float)
        if is_optional and (_TIMES | _TIMES_TOO) & words_of(name):
            found = next((each for shape in _SHAPES if (each := _whole(sp, x, name, shape, taken))), None)
            if found is not None:
                yield found


_SHAPES = ("[B]", "[B, 1]", "[]")


def _whole(sp: BuiltModule, x: Tensor, name: str, shape: str, taken: list[str]) -> WholeTime | None:
    rows = torch.arange(len(x), device=x.device) / len(x)
    some = [_shaped(each.to(getattr(torch, sp.dtype)), shape) for each in (0.02 + 0.9 * rows, 0.97 - 0.9 * rows)]
    some += [_shaped((rows * 3).floor().to(some[0]) + first, shape) for first in (1, 4)]
    calls = [partial(_answer, sp, x, name, each) for each in some]
    tried = [attempt(call) for call in calls]
    answers = [each for each in tried if isinstance(each, Tensor)]
    if len(answers) < len(tried) or any(each.shape != answers[0].shape for each in answers):
        return None
    taken.append(name)
    one, other, whole, others = answers
    if is_another(one, other) or not (is_another(one, whole) and is_another(whole, others)):
        return None
    operation, place = loss_between(sp, calls[:2])
    recording = recording_of(sp, calls[2])
    rounded = _rounded(recording, operation, place)
    if rounded is None:
        return None
    size = _size_in_arithmetic(recording, rounded)
    if size is None:
        return None
    reason = _reason(sp, name, place, size / float(some[2].abs().max()))
    return WholeTime(name, operation, place, reason) if reason else None


def _shaped(value: Tensor, shape: str) -> Tensor:
    return {"[B]": value, "[B, 1]": value[:, None], "[]": value[0]}[shape]


def _answer(sp: BuiltModule, x: Tensor, name: str, value: Tensor) -> Tensor:
    with giving(sp.module, {name: value}):
        return sp(x)


def _rounded(recording: Recording, name: str, place: Place) -> int | None:
    """The number of the operation that makes whole numbers, of that name at that line."""
    for number, each in enumerate(recording.operations):
        if each.name == name and (each.place.file, each.place.line) == (place.file, place.line):
            is_whole = bool(each.results) and not each.results[0].is_floating_point()
            is_cast = is_whole and bool(each.read) and each.read[0][1].is_floating_point()
            if is_cast or name in _ROUNDING:
                return number
    return None


def _size_in_arithmetic(recording: Recording, rounded: int) -> float | None:
    """The largest of the first numbers that arithmetic makes of it; None where it is looked up with, or not used."""
    of_it, largest = {rounded}, None
    for number, each in enumerate(recording.operations):
        if not of_it.intersection(each.makers) or number == rounded:
            continue
        if each.name in _LOOKING_UP and not _is_view(each.name):
            return None
        if not each.results:
            continue
        if each.results[0].is_floating_point() and each.name not in _MOVING:
            if each.name not in _PRODUCTS:
                continue
            largest = max(largest or 0.0, float(each.results[0].abs().max()))
        of_it.add(number)
    return largest


_MOVING = frozenset({"to_copy", "unsqueeze", "view", "expand", "reshape", "squeeze", "clone", "t", "transpose"})
_PRODUCTS = frozenset({"mul", "mul_", "mm", "bmm", "addmm", "div", "outer", "true_divide"})


def _is_view(name: str) -> bool:
    return name in ("slice", "select")


def _reason(sp: BuiltModule, name: str, place: Place, factor: float) -> str:
    """Why the argument is a fraction, in words; nothing where that is not known."""
    if words_of(name) & _ALWAYS_FRACTIONS:
        return "it is named after fractions"
    called = rf"({re.escape(name)}|t|times?|timesteps?|sigmas?|noise levels?)"
    spoken = re.compile(rf"\b{called}\b[^.;\n]{{0,60}}{_UNIT}|continuous[- ](time|noise|diffusion)", re.IGNORECASE)
    if any(spoken.search(each) for each in _documentation(sp.module, place)):
        return "it lies between 0 and 1 by what is written of it"
    drawn = re.compile(rf"^\s*{called}\s*=\s*[^#\n]*({_DRAWN})", re.MULTILINE)
    counted = re.compile(rf"^\s*{called}\s*=\s*[^#\n]*randint", re.MULTILINE)
    texts = [text for file in sources_beside(sp.module) if isinstance(text := attempt(Path(file).read_text), str)]
    if any(map(counted.search, texts)):
        return ""
    if factor >= _LOUD:
        return f"it is multiplied by {factor:.0f} behind that"
    return "it is drawn between 0 and 1 where it is made" if any(map(drawn.search, texts)) else ""


def _documentation(module: nn.Module, place: Place) -> Iterator[str]:
    """What is written of the module, its forward, and the part in which it is lost."""
    part = attempt(lambda: part_at(module, place.module))
    for kind in {type(module), type(module if isinstance(part, Caught) else part)}:
        for each in (kind, *(method for method in vars(kind).values() if callable(method))):
            yield inspect.getdoc(each) or "" if each is not kind else kind.__doc__ or ""
