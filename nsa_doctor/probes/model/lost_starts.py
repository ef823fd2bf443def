"""Initial values that a line of a constructor gives, and a later line for all parameters writes over."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.general_lines import is_for_any_module
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.internal import memory_of, parameter_at, part_at
from nsa_doctor.probes.model.idle_initialisers import started
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
    with started() as codes:
        _built(subject, subject.seed)
    if nn.Module.load_state_dict.__code__ in codes:
        return  # its weights come from elsewhere
    watch = StartWrites(FrameFilter(subject.packages))
    with watch:
        module = _built(subject, subject.seed)
    found = list(_candidates(module, watch))
    if not found:
        return
    other = StartWrites(FrameFilter(subject.packages))
    with other:
        again = dict(_built(subject, subject.seed + 1).named_parameters())
    seen: set[Line] = set()
    for name, lost in found:
        same = other.memories[memory_of(again[name])].lost if name in again else []
        is_chosen = any(each.over.line == lost.over.line and torch.equal(each.before, lost.before) for each in same)
        if is_chosen and lost.given.line not in seen:
            seen.add(lost.given.line)
            yield _described(module, watch, name, lost)


def _built(subject: Subject, seed: int) -> nn.Module:
    seed_everything(seed)
    return ask("build", lambda: subject.build(seed), None)


def _candidates(module: nn.Module, watch: StartWrites) -> Iterator[tuple[str, Lost]]:
    """What was lost of parameters to lines that are for all of them."""
    names = {memory_of(each): name for name, each in module.named_parameters() if not is_lazy(each)}
    written = {line: {names[memory] for memory in held if memory in names} for line, held in watch.lines.items()}
    for memory, name in names.items():
        parameter = parameter_at(module, name).detach()
        for lost in watch.memories[memory].lost:
            is_other = lost.before.shape == parameter.shape and not torch.equal(lost.before, parameter)
            if is_other and not lost.given.is_librarys and _is_chosen(name, lost) and _is_for_all(lost, written):
                yield name, lost


def _is_for_all(lost: Lost, written: Mapping[Line, set[str]]) -> bool:
    """Whether the later line writes to many, the earlier to few of them; by its source, where it came upon few."""
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
    first = values.flatten()[0] if values.numel() else None
    if first is None or not bool((values == first).all()):
        return values.numel() > 0 and bool(torch.isfinite(values).all())
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
    place = Place(module=path, module_class=type(part_at(module, path)).__name__)
    return LostStart(
        name=name,
        place=replace(place, file=line.file, line=line.line, function=line.function),
        given=lost.given.line,
        was=_said(lost.before),
        over=lost.over.line,
        now=_said(parameter_at(module, name).detach()),
        num_parameters=len(watch.lines[lost.over.line]),
    )


def _place(lost: Lost) -> Line:
    """Where the order is wrong: the earlier of two lines of one function, or the later line where a part was built."""
    shared = [
        (before, after)
        for (frame, before), (other, after) in zip(lost.given.calls, lost.over.calls, strict=False)
        if frame == other and before.function == after.function
    ]
    below = lost.given.calls[len(shared) :]
    is_of_a_part = any(line.function == "__init__" for _, line in below)
    return lost.over.line if not shared or is_of_a_part else shared[-1][0]


def _said(values: Tensor) -> str:
    first = values.flatten()[0]
    if bool((values == first).all()):
        return f"{float(first):.4g}" if values.numel() == 1 else f"{float(first):.4g} throughout"
    low, high = float(values.min()), float(values.max())
    return f"values from {low:.4g} to {high:.4g}"
