"""GRD102 backward-twice-differs

Detects: gradients that change when the same forward and backward run again, or when backward runs twice through one
graph; a second backward through a graph that is kept raises, and does not say that it is refused.
Matters: accumulated gradients are not the sum of what they should be, and no run can be repeated.
Fix: a backward must neither write into what it saved or was handed, nor remember how often it ran, nor draw new noise.

Example:
    # faulty
    def backward(ctx, grad):
        (weights,) = ctx.saved_tensors
        return grad.mul_(weights)  # writes into what it was handed
    # correct
    def backward(ctx, grad):
        (weights,) = ctx.saved_tensors
        return grad * weights
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.gradient import benches
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.derivative_probe import DerivativeProbe, Differential
from nsa_doctor.probes.gradients.gradient_fault import blame, last_differing
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.subject.contract import Subject

_BOTH = {"again": "the same forward and backward run again", "twice": "a second backward through the same graph"}
_NAMES_A_SECOND_PASS = re.compile(r"second (time|backward)|twice|retain_graph|freed|only once", re.IGNORECASE)


def run(subject: Subject) -> Iterator[Finding]:
    for mode, length, make in benches(subject, only_one_length=True):
        bench = make(length)
        for way, words in _BOTH.items():
            try:
                first, second = _twice(bench, way, is_followed=False)
            except SubjectFailedError as failure:
                if way != "twice" or failure.phase != "backward":
                    raise
                yield _raises(subject, mode, length, failure)
                return
            if last_differing(bench.dtype, first, second) is not None:
                yield _finding(subject, mode, length, bench, way, words)
                return


def _twice(bench: DerivativeProbe, way: str, is_followed: bool) -> tuple[Differential, list[float]]:
    """Slopes of two passes; the same ones when the subject says that it refuses a second pass, as it may."""
    if way == "again":
        first = bench.differentiate(0, is_followed)
        return first, bench.differentiate(0, is_followed).slopes
    try:
        with unobserved():
            both = bench.differentiate(0, is_followed, is_repeated=True)
    except SubjectFailedError as failure:
        if not _NAMES_A_SECOND_PASS.search(failure.caught.sentence):
            raise
        once = bench.differentiate(0, is_followed)
        return once, once.slopes
    return both, both.again


def _raises(subject: Subject, mode: str, length: int, failure: SubjectFailedError) -> Finding:
    trouble = trouble_of(failure, subject.packages)
    message = f"{_BOTH['twice']}, kept by retain_graph=True, raises at S={length} in {mode} mode: {trouble.message}"
    evidence: dict[str, int | str] = {"length": length, "mode": mode, "way": "twice"}
    return Finding(message=message, where=trouble.place, evidence=evidence, repro=command_for(subject, "GRD102"))


def _finding(subject: Subject, mode: str, length: int, bench: DerivativeProbe, way: str, words: str) -> Finding:
    place, what = definition_place(bench.built.module), "the subject"
    try:
        first, second = _twice(bench, way, is_followed=True)
        number = last_differing(bench.dtype, first, second)
    except (SubjectFailedError, NotComparableError):  # following it is what fails
        number = None
    if number is not None:
        place, what, _ = blame(bench, first, number)
        what += f": {first.slopes[number]:.6g}, then {second[number]:.6g} along one direction"
    return Finding(
        message=f"gradients differ between one pass and {words} at S={length} in {mode} mode, first in {what}",
        where=place,
        evidence={"length": length, "mode": mode, "way": way, "dtype": bench.built.dtype},
        repro=command_for(subject, "GRD102"),
    )


class _WritesIntoWhatItSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.slope = x.detach().cos()
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return ctx.slope.mul_(gradients[0])


def planted(subject: Subject) -> Subject:
    return replace(subject, forward=lambda module, x: _WritesIntoWhatItSaved.apply(subject.forward(module, x)))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD206", "NAN101"), explained_by=("GRD4",))
