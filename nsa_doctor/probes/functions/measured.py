"""Problems with their yardsticks and answers, each computed once for a subject."""

from dataclasses import dataclass

import torch

from nsa_doctor.probes.functions.bounds import Excess, Yardstick, yardstick
from nsa_doctor.probes.functions.calling import Answer, ask
from nsa_doctor.probes.functions.problems import Draw, problem_of
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

FORWARD, BACKWARD = ("out", "lse"), ("dq", "dk", "dv")


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """One problem, what the function answers, and what is right."""

    problem: Problem
    answer: Answer
    yardstick: Yardstick

    def excess(self, name: str) -> Excess | None:
        """Where the answer's tensor leaves its bound; None where it is right or not there."""
        value = self.answer.tensors.get(name)
        if value is None or name not in self.yardstick.truth:
            return None
        return self.yardstick.excess(name, value)

    @property
    def is_forward_right(self) -> bool:
        """Whether the output is what it should be, and all that follows from it may be judged."""
        return "out" in self.answer.tensors and self.excess("out") is None


def measured(subject: FunctionSubject, shape: Shape, draw: Draw | None = None) -> Measured:
    """The function asked at that shape with those values, beside the truth."""
    draw = draw or Draw()
    key = ("measured", shape, draw.seed, draw.about)
    if key not in subject.known:
        problem = problem_of(subject, shape, draw)
        answer = ask(subject, problem)
        subject.known[key] = Measured(problem=problem, answer=answer, yardstick=yardstick_of(subject, problem))
    found: Measured = subject.known[key]
    return found


def yardstick_of(subject: FunctionSubject, problem: Problem) -> Yardstick:
    """What is right for a problem, and how far from it the function may be."""
    has_gradients = not (subject.convention.is_forward_only or subject.spec.is_forward_only)
    return yardstick(problem, getattr(torch, subject.dtype), subject.device, has_gradients)
