"""Initial values that a line of a constructor gives, and a later line for all parameters writes over."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.general_lines import is_for_any_module, is_for_one_by_name
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.internal import memory_of
from nsa_doctor.probes.model.start_writes import Lost, StartWrites
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.subject.contract import Subject

_OTHERS, _PARAMETERS = 2, 4  # names in their modules, and parameters of them, that a line for all writes to at least
_NORMS = re.compile(r"(weight|gamma|scale|gain|g)$")


@dataclass(frozen=True)
class LostStart:
    """A parameter, the line whose values it had, what these were, and the line for `num_parameters` that came after."""

    name: str
    place: Place
    given: Line
    was: str
    over: Line
    now: str
    num_parameters: int


def lost_starts(subject: Subject) -> Iterator[LostStart]:
    """One for each such line: chosen values, the same for every seed, that a line for all parameters replaces."""
    watch, module = _watched(subject, subject.seed)
    found = list(_candidates(module, watch))
    if not found:
        return
    other, again = _watched(subject, subject.seed + 1)
    others = {name: memory_of(each) for name, each in again.named_parameters() if _is_usual(each)}
    seen: set[Line] = set()
    for name, lost in found:
        same = other.memories[others[name]].lost if name in others else []
        is_chosen = any(each.over.line == lost.over.line and torch.equal(each.before, lost.before) for each in same)
        if is_chosen and lost.given.line not in seen:
            seen.add(lost.given.line)
            yield _described(module, watch, name, lost)


def _watched(subject: Subject, seed: int) -> tuple[StartWrites, nn.Module]:
    watch = StartWrites(FrameFilter(subject.packages))
    seed_everything(seed)
    with watch:
        return watch, ask("build", lambda: subject.build(seed), None)


def _is_usual(parameter: Tensor) -> bool:
    is_there = not (is_lazy(parameter) or parameter.is_meta or parameter.is_nested)
    return is_there and parameter.is_floating_point() and parameter.layout == torch.strided


def _candidates(module: nn.Module, watch: StartWrites) -> Iterator[tuple[str, Lost]]:
    """What was lost of parameters to lines that are for all of them, and that had the last word."""
    parameters = {name: each.detach() for name, each in module.named_parameters() if _is_usual(each)}
    names = {memory_of(each): name for name, each in parameters.items()}
    written = {line: {names[memory] for memory in held if memory in names} for line, held in watch.lines.items()}
    for memory, name in names.items():
        held = watch.memories[memory]
        for lost in held.lost:
            is_last = held.writer is not None and held.writer.line == lost.over.line
            is_other = lost.before.shape == parameters[name].shape and not torch.equal(lost.before, parameters[name])
            is_lost = is_last and is_other and not lost.given.is_librarys
            if is_lost and _is_chosen(name, lost) and _is_for_all(lost, written):
                yield name, lost


def _is_for_all(lost: Lost, written: Mapping[Line, set[str]]) -> bool:
    """Whether the later line writes to many, the earlier to few of them; by its source, where it came upon few."""
    if is_for_one_by_name([line for _, line in lost.over.calls]):
        return False
    over, given = (written.get(each.line, set()) for each in (lost.over, lost.given))
    if len(over) >= _PARAMETERS and len(_roles(over)) >= max(_OTHERS, len(_roles(given)) + 1):
        return True
    if not is_for_any_module(lost.over.line) or is_for_any_module(lost.given.line):
        return False
    function = lost.over.line.file, lost.over.line.function
    touched = {name for line, names in written.items() if (line.file, line.function) == function for name in names}
    holders, few = (({role.partition(".")[0] for role in _roles(names)}) for names in (touched, given))
    return len(touched) >= _PARAMETERS and len(holders) > len(few)


def _roles(names: set[str]) -> set[str]:
    """What the parameters are called in the modules that hold them: gate.bias of blocks.3.gate.bias."""
    return {".".join(name.split(".")[-2:]) for name in names}


def _is_chosen(name: str, lost: Lost) -> bool:
    """Whether values are no placeholder, nor what parameters begin with everywhere: zeros of a bias, ones of a norm."""
    values = lost.before
    if not values.numel() or not bool(torch.isfinite(values).all()):
        return False
    first = values.flatten()[0]
    if not bool((values == first).all()):
        return True
    if float(first) not in (0.0, 1.0):
        return True
    if not lost.given.is_placed:
        return False
    if values.ndim > 1:
        return True
    is_of_a_norm = _NORMS.search(name) is not None
    return is_of_a_norm if float(first) == 0 else not is_of_a_norm


def _described(module: nn.Module, watch: StartWrites, name: str, lost: Lost) -> LostStart:
    path = name.rpartition(".")[0]
    line = _place(lost)
    place = Place(module=path, module_class=type(dict(module.named_modules()).get(path, module)).__name__)
    return LostStart(
        name=name,
        place=replace(place, file=line.file, line=line.line, function=line.function),
        given=lost.given.line,
        was=_said(lost.before),
        over=lost.over.line,
        now=_said(dict(module.named_parameters())[name].detach()),
        num_parameters=len(watch.lines[lost.over.line]),
    )


def _place(lost: Lost) -> Line:
    """Where the order is wrong: the earlier of two lines of one function, or the later line where a part was built."""
    together = zip(lost.given.calls, lost.over.calls, strict=False)
    shared = list(takewhile(lambda both: _is_one_call(*both), together))
    below = lost.given.calls[len(shared) :]
    is_of_a_part = any(line.function == "__init__" for _, line in below)
    return lost.over.line if not shared or is_of_a_part else shared[-1][0][1]


def _is_one_call(before: tuple[int, Line], after: tuple[int, Line]) -> bool:
    (frame, line), (other, later) = before, after
    return frame == other and line.function == later.function


def _said(values: Tensor) -> str:
    first = values.flatten()[0]
    if bool((values == first).all()):
        return f"{float(first):.4g}" if values.numel() == 1 else f"{float(first):.4g} throughout"
    low, high = float(values.min()), float(values.max())
    return f"values from {low:.4g} to {high:.4g}"
