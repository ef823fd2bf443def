"""FUN507 stream-changes-answer

Detects: on a GPU, an answer that is wrong on another stream than the default one, whose inputs are still being filled,
and a CUDA graph whose replay gives something else than a call with the same values. That it cannot be captured is a
note.
Matters: training overlaps copies and communication with kernels on several streams, and serving replays graphs; a
kernel on a stream of its own reads what is not there yet.
Fix: launch every kernel on torch.cuda.current_stream(), and read no value of a tensor in Python on the way.

Example:
    # faulty
    launch(q.data_ptr(), stream=0)
    # correct
    launch(q.data_ptr(), stream=torch.cuda.current_stream().cuda_stream)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from nsa_doctor.checks._shared.of_function import differs, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.measured import measured, measured_problem
from nsa_doctor.probes.functions.problems import Draw, problem_of
from nsa_doctor.probes.functions.streams import on_a_late_stream, replayed
from nsa_doctor.subject.function import FunctionSubject, Problem

_LENGTH = 64


def run(subject: FunctionSubject) -> Iterator[Finding | Note]:
    if subject.device != "cuda":
        raise NotApplicableError("streams are a GPU's")
    shape = shapes.at_length(subject, _LENGTH)
    first = measured(subject, shape)
    second = measured_problem(subject, _with_other_values(subject, first.problem))
    if any(each.first_excess(each.answer.tensors) is not None for each in (first, second)):
        raise NotComparableError("it is wrong on the default stream")
    late = on_a_late_stream(subject, first.problem)
    excess = first.first_excess(late.tensors)
    if excess is not None:
        control = "right on the default stream"
        yield differs(subject, "FUN507", first.problem, excess, late, f"{control}; here its inputs are filled late")
        return
    if subject.convention.make is not None or subject.convention.has_parts or subject.convention.is_cache:
        return  # what such a call is given beside tensors is part of a graph
    again = replayed(subject, first.problem, second.problem)
    if isinstance(again, str):
        yield Note(message=f"no CUDA graph can be captured of {subject.name}: {again[:300]}")
        return
    excess = second.first_excess(again)
    if excess is not None:
        yield differs(
            subject, "FUN507", second.problem, excess, second.answer, "right when called; a graph's replay is not"
        )


def _with_other_values(subject: FunctionSubject, problem: Problem) -> Problem:
    """What a graph can be given: other values of the tensors, while what is no input of it, as a mask, stays."""
    other = problem_of(subject, problem.shape, Draw(seed=12))
    return replace(problem, inputs=other.inputs, dout=other.dout)


def planted(subject: FunctionSubject) -> FunctionSubject:
    def runs_on_the_default_stream(*positional: Any, **keywords: Any) -> Any:
        with torch.cuda.stream(torch.cuda.default_stream()):
            return subject.function(*positional, **keywords)

    return injected(subject, runs_on_the_default_stream)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    isolate=True,
    blocked_by=("FUN101", "FUN102"),
    priority=575,
)
