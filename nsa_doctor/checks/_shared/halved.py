"""Gradients of a module that runs in half precision alone: steps along them beside what its outputs do."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import short_number
from nsa_doctor.probes.gradients.derivative import has_steps
from nsa_doctor.probes.gradients.half_slopes import (
    INPUT,
    HalfSlope,
    are_alike,
    dtype_of,
    half_slopes,
    has_own_backward,
    largest_jump,
)
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTHS = {"smoke": (67,), "quick": (67, 130), "full": (37, 67, 130, 257)}
_PARAMETERS = {"smoke": 12, "quick": 40, "full": 400}
_ROWS = 4
_OTHER_INPUTS = (101, 202)
_MOST_JUMP = 6.0  # roundings by which the middle of a row may be off the line between its ends


def in_half_alone(subject: Subject) -> BuiltModule | None:
    """The built subject, where neither float64 nor its own dtype leaves room for a step."""
    if has_steps(getattr(torch, subject.dtype)):
        return None
    evaluated: Mode = "train" if "eval" not in subject.modes and "train" in subject.modes else "eval"
    made = comparable_module(subject, mode=evaluated)
    return None if has_steps(dtype_of(made)) else made


def half_findings(subject: Subject, made: BuiltModule, code: str) -> Iterator[Finding]:
    """The gradient that is furthest from what the outputs do, at the first length where one is, in every batch."""
    num_certain = 0
    for length in _LENGTHS[subject.profile]:
        if length > subject.max_length:
            continue
        _require_smooth(made, length)
        slopes = list(half_slopes(made, made.input(length, batch=_ROWS), _PARAMETERS[subject.profile]))
        num_certain += sum(map(len, slopes))
        wrong = sorted((each for each in slopes if are_alike(each)), key=lambda each: -abs(each[-1].deviation))
        confirmed = next((each for each in wrong if _is_confirmed(made, length, each)), None)
        if confirmed is not None:
            yield _found(subject, made, code, length, min(confirmed, key=lambda slope: slope.tolerance))
            return
    if not num_certain:
        raise NotComparableError(f"it runs in {made.dtype} alone, in which rounding hides what a step changes")


def _require_smooth(made: BuiltModule, length: int) -> None:
    """Raise NotComparableError where steps of half precision can say nothing."""
    x = made.input(length, batch=_ROWS)
    if not has_own_backward(made, x):
        raise NotComparableError(
            f"the subject runs in {made.dtype} alone, which leaves no room for a step, and has no backward of its own"
        )
    jump = largest_jump(made, x)
    if not jump <= _MOST_JUMP:
        raise NotComparableError(
            f"it runs in {made.dtype} alone, and a small step changes a row of its output by a jump, as a choice does"
        )


def _is_confirmed(made: BuiltModule, length: int, slopes: Sequence[HalfSlope]) -> bool:
    """Whether each of other inputs shows a fault to the same side; how large it is depends on the input."""
    only, side = (slopes[0].name, slopes[0].part), slopes[0].deviation > 0
    for seed in _OTHER_INPUTS:
        x = made.input(length, batch=_ROWS, seed=made.subject.seed + seed)
        again = next(half_slopes(made, x, _PARAMETERS["full"], only), [])
        if not are_alike(again) or (again[0].deviation > 0) is not side:
            return False
    return True


def _found(subject: Subject, made: BuiltModule, code: str, length: int, slope: HalfSlope) -> Finding:
    of = slope.name if slope.part == "all of it" else f"{slope.part} of {slope.name}"
    message = (
        f"the gradient of {of} says that a step along it changes the loss by {short_number(slope.predicted)} and the "
        f"outputs change it by {short_number(slope.seen)}, {abs(slope.deviation):.1%} apart (tolerance "
        f"{slope.tolerance:.1%}) at S={length} in {made.dtype}, in every batch"
    )
    numbers = {"gradient": slope.predicted, "outputs": slope.seen, "deviation": slope.deviation}
    return Finding(
        message=message,
        where=_place(made.module, slope.name),
        evidence={"length": length, "parameter": slope.name, **numbers, "dtype": made.dtype},
        repro=command_for(subject, code),
    )


def _place(root: nn.Module, name: str) -> Place:
    """The innermost module of the subject's own around a parameter."""
    if name == INPUT:
        return definition_place(root)
    path = name.split(".")[:-1]
    while path and type(part_at(root, ".".join(path))).__module__.startswith("torch."):
        path.pop()
    return replace(definition_place(part_at(root, ".".join(path))), module=".".join(path))
