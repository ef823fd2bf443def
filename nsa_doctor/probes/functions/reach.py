"""Which keys each query reads, measured: values that each name one key come out as that key's weight.

The output is linear in the values, so that values of one in a channel for each key show the weights of as many keys at
once as there are channels. The same way back: a gradient of the output that names one query comes out at the values of
the keys it reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nsa_doctor.probes.functions.calling import Answer, Asking, ask
from nsa_doctor.probes.functions.oracle import Arithmetic, solve
from nsa_doctor.probes.functions.problems import Draw, problem_of, with_inputs
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

_LEAST_SHARE = 0.25  # of the weight that a key should have
_FAINT = 1e-3  # of the largest weight of a row: what should weigh less is not looked for


@dataclass(frozen=True, kw_only=True, eq=False)
class Reach:
    """Weights [B, H, Sq, Sk] that were measured and that are right; `direction` is forward or backward."""

    problem: Problem
    answer: Answer
    direction: str
    measured: Tensor
    right: Tensor
    eps: float

    @property
    def undeclared(self) -> Tensor:
        """Pairs read that may not be."""
        floor = 4 * self.eps * self.right.amax(-1, keepdim=True)
        return (self.right == 0) & ~(self.measured.abs() <= floor) & self._is_judged

    @property
    def missing(self) -> Tensor:
        """Pairs not read that must be."""
        heavy = self.right > _FAINT * self.right.amax(-1, keepdim=True)
        return heavy & ~(self.measured.abs() >= _LEAST_SHARE * self.right) & self._is_judged

    @property
    def is_about_reach(self) -> bool:
        """Whether most of what must be read is read as it should be: else it is the gradient that is wrong."""
        wanted = self.right > 0
        near = (self.measured - self.right).abs() <= 0.5 * self.right
        return bool((near & wanted).sum() >= 0.5 * wanted.sum())

    @property
    def _is_judged(self) -> Tensor:
        return self.problem.seen.any(-1, keepdim=True)


def reaches(subject: FunctionSubject, shape: Shape, has_backward: bool = True) -> Iterator[Reach]:
    """The reach forward, then backward; nothing of a call that fails."""
    problem = problem_of(subject, shape, Draw(seed=3, values=_nearly_equal, about="nearly equal scores"))
    right = _weights(problem)
    eps = torch.finfo(getattr(torch, subject.dtype)).eps
    forward = _forward(subject, problem)
    if isinstance(forward, Answer):
        return
    yield Reach(problem=problem, answer=forward[1], direction="forward", measured=forward[0], right=right, eps=eps)
    can = has_backward and subject.has_gradients
    if can and (backward := _backward(subject, problem)) is not None:
        yield Reach(
            problem=problem, answer=backward[1], direction="backward", measured=backward[0], right=right, eps=eps
        )


def _nearly_equal(shape: Shape, chance: torch.Generator) -> dict[str, Tensor]:
    q = torch.randn(shape.batch, shape.queries, shape.heads, shape.head, generator=chance)
    return {"q": q * 0.05}


def _weights(problem: Problem) -> Tensor:
    """Right weights, all values of one head of keys being read by the heads it belongs to."""
    channels = problem.shape.keys
    v = torch.eye(channels)[None, :, None].expand(problem.shape.batch, -1, problem.shape.groups, -1)
    shape = replace(problem.shape, value=channels)
    dout = torch.zeros(problem.shape.batch, problem.shape.queries, problem.shape.heads, channels)
    wide = replace(problem, shape=shape, dout=dout, inputs={**problem.inputs, "v": v.to(problem.inputs["q"].dtype)})
    return solve(wide, Arithmetic(), wants_gradients=False).tensors["out"].transpose(1, 2)


def _forward(subject: FunctionSubject, problem: Problem) -> tuple[Tensor, Answer] | Answer:
    shape, parts = problem.shape, []
    answer = Answer()
    for first in range(0, shape.keys, shape.value):
        v = torch.zeros_like(problem.inputs["v"])
        for channel, key in enumerate(range(first, min(shape.keys, first + shape.value))):
            v[:, key, :, channel] = 1
        answer = ask(subject, with_inputs(problem, v=v), Asking(wants=()))
        if "out" not in answer.tensors:
            return answer
        parts.append(answer.tensors["out"].double().transpose(1, 2))
    return torch.cat(parts, -1)[..., : shape.keys], answer


def _backward(subject: FunctionSubject, problem: Problem) -> tuple[Tensor, Answer] | None:
    """Of each group the sum over its query heads, given to each of them: one head of each group at a time."""
    shape = problem.shape
    repeats = shape.heads // shape.groups
    measured = torch.zeros(shape.batch, shape.heads, shape.queries, shape.keys, dtype=torch.float64)
    answer = Answer()
    for member in range(repeats):
        for first in range(0, shape.queries, shape.value):
            dout = torch.zeros_like(problem.dout)
            queries = range(first, min(shape.queries, first + shape.value))
            for channel, query in enumerate(queries):
                dout[:, query, member::repeats, channel] = 1
            answer = ask(subject, replace(problem, dout=dout), Asking(wants=("v",)))
            if "dv" not in answer.tensors:
                return None
            found = answer.tensors["dv"].double().permute(0, 2, 3, 1)  # [B, G, Dv, Sk]
            measured[:, member::repeats, first : queries.stop] = found[:, :, : len(queries)]
    return measured, answer
