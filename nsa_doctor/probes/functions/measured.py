"""Problems with their bounds and answers, each computed once for a subject."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nsa_doctor.probes.functions.bounds import Bounds, Excess, bounds_between, oracle_bounds
from nsa_doctor.probes.functions.calling import Answer, ask
from nsa_doctor.probes.functions.problems import Draw, problem_of
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

FORWARD = ("out", "lse")


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """One problem, what the function answers, and what is right; without an oracle its first answer is."""

    problem: Problem
    answer: Answer
    bounds: Bounds

    def excess(self, name: str) -> Excess | None:
        """Where the answer's tensor leaves its bound; None where it is right or not there."""
        value = self.answer.tensors.get(name)
        return None if value is None else self.compare(name, value)

    def compare(self, name: str, value: Tensor) -> Excess | None:
        """Where another tensor of that name leaves its bound."""
        return self.bounds.excess(name, value) if name in self.bounds.truth else None

    def first_excess(self, tensors: Mapping[str, Tensor]) -> Excess | None:
        """The first of some tensors that leaves its bound, outputs before gradients."""
        order = (*FORWARD, *(name for name in tensors if name not in FORWARD))
        found = (self.compare(name, tensors[name]) for name in order if name in tensors)
        return next((excess for excess in found if excess is not None), None)

    def wrong_gradients(self, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
        """The gradients among some tensors that leave their bounds."""
        return tuple(name for name in tensors if name.startswith("d") and self.compare(name, tensors[name]) is not None)

    def is_finite(self, name: str) -> bool:
        """Whether the answer has that tensor, and every value of it is finite."""
        return name in self.answer.tensors and bool(self.answer.tensors[name].isfinite().all())

    @property
    def is_forward_right(self) -> bool:
        """Whether the output is what it should be, and all that follows from it may be judged."""
        return "out" in self.answer.tensors and self.excess("out") is None


def measured(subject: FunctionSubject, shape: Shape, draw: Draw | None = None) -> Measured:
    """The function asked at that shape with those values, beside what is right."""
    draw = draw or Draw()
    key = ("measured", shape, draw.seed, draw.about)
    if key not in subject.known:
        subject.known[key] = measured_problem(subject, problem_of(subject, shape, draw))
    found: Measured = subject.known[key]
    return found


def measured_problem(subject: FunctionSubject, problem: Problem) -> Measured:
    """The function asked, beside what is right."""
    answer = ask(subject, problem)
    return Measured(problem=problem, answer=answer, bounds=bounds_of(subject, problem, answer))


def bounds_of(subject: FunctionSubject, problem: Problem, answer: Answer) -> Bounds:
    """What is right for a problem, and how far from it the function may be."""
    dtype = getattr(torch, subject.dtype)
    if subject.reference is not None:
        return _of_reference(subject, problem, dtype)
    if subject.spec.is_declared:
        return oracle_bounds(problem, dtype, subject.device, subject.has_gradients)
    return bounds_between(problem, answer.tensors, (), dtype)


def _of_reference(subject: FunctionSubject, problem: Problem, dtype: torch.dtype) -> Bounds:
    """The reference in the widest dtype that it serves, and what it makes of the problem in the dtype examined."""
    assert subject.reference is not None
    other = replace(subject, function=subject.reference, reference=None)
    own = ask(other, problem)
    for wide in (torch.float64, torch.float32):
        inputs = {name: value.to(wide) for name, value in problem.inputs.items()}
        answer = ask(other, replace(problem, inputs=inputs, dout=problem.dout.to(wide)))
        if answer.failure is None and not answer.malformed:
            return bounds_between(problem, answer.tensors, [own.tensors], dtype)
    return bounds_between(problem, own.tensors, (), dtype)
