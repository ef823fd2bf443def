"""Which head of keys and values each query head reads: values, and gradients, that are one in one head alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from nsa_doctor.probes.functions.calling import Answer, Asking, ask
from nsa_doctor.probes.functions.problems import Draw, problem_of, with_inputs
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

_LEAST = 1e-3


@dataclass(frozen=True, kw_only=True)
class HeadReach:
    """By query head, the heads of keys and values that it was seen to read by a tensor, and the one that it should."""

    problem: Problem
    answer: Answer
    tensor: str
    read: tuple[tuple[int, ...], ...]
    declared: tuple[int, ...]


def head_reaches(subject: FunctionSubject, shape: Shape) -> Iterator[HeadReach]:
    """Forward, then backward; nothing of a call that fails."""
    problem = problem_of(subject, shape, Draw(seed=4))
    ratio = shape.heads // shape.groups
    declared = tuple(head // ratio for head in range(shape.heads))
    reads = torch.zeros(shape.heads, shape.groups, dtype=torch.bool)
    answer = Answer()
    for group in range(shape.groups):
        v = torch.zeros_like(problem.inputs["v"])
        v[:, :, group] = 1
        answer = ask(subject, with_inputs(problem, v=v), Asking(wants=()))
        if "out" not in answer.tensors:
            return
        reads[:, group] = answer.tensors["out"].float().abs().amax((0, 1, 3)) > _LEAST
    yield HeadReach(problem=problem, answer=answer, tensor="out", read=_listed(reads), declared=declared)
    for name in ("dv", "dk"):
        reads = torch.zeros_like(reads)
        for head in range(shape.heads):
            dout = torch.zeros_like(problem.dout)
            dout[:, :, head] = problem.dout[:, :, head]
            answer = ask(subject, replace(problem, dout=dout), Asking(wants=("k", "v")))
            if name not in answer.tensors:
                return
            reads[head] = answer.tensors[name].float().abs().amax((0, 1, 3)) > _LEAST
        yield HeadReach(problem=problem, answer=answer, tensor=name, read=_listed(reads), declared=declared)


def _listed(reads: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(group) for group in row.nonzero()[:, 0]) for row in reads)
