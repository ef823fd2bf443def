"""Gradients beside differences of outputs, in the dtype that a function has.

Between two inputs the loss changes by the integral of its gradient; with gradients at both ends and in the middle
(Simpson) it is known to the fourth power of the step, and that the inputs are rounded does not matter: their difference
is exact. How much rounding of the outputs hides is measured from their size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.probes.functions.calling import Answer, Asking, ask
from nsa_doctor.probes.functions.problems import Draw, problem_of, with_inputs
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

_STEPS = (0.05, 0.15, 0.4)
_MOST_NOISE = 0.02  # of what is to be seen
_LEAST_TOLERANCE = 0.01
_LEAST_IN_HALF = 0.025  # weights are rounded on the way too
_NOISES = 4.0


@dataclass(frozen=True, kw_only=True)
class Slope:
    """What a gradient says of a step, and what the outputs do; `noise` and `curvature` are shares of that."""

    problem: Problem
    answer: Answer
    tensor: str
    direction: str
    predicted: float
    seen: float
    noise: float
    curvature: float

    @property
    def deviation(self) -> float:
        """How far they are apart, as a share of the larger one."""
        return abs(self.predicted - self.seen) / max(abs(self.predicted), abs(self.seen), 1e-300)

    @property
    def tolerance(self) -> float:
        """What rounding and curvature may make."""
        is_half = self.problem.dout.dtype in (torch.float16, torch.bfloat16)
        return (_LEAST_IN_HALF if is_half else _LEAST_TOLERANCE) + _NOISES * self.noise + self.curvature

    @property
    def is_certain(self) -> bool:
        """Whether anything is to be seen."""
        return self.noise < _MOST_NOISE and self.curvature < _MOST_NOISE

    @property
    def is_right(self) -> bool:
        """Whether they agree, or nothing is to be seen."""
        return not self.is_certain or self.deviation <= self.tolerance


def slopes(subject: FunctionSubject, shape: Shape, seed: int = 8) -> Iterator[Slope]:
    """One for each gradient and direction, at the step at which most is to be seen."""
    problem = problem_of(subject, shape, Draw(seed=seed))
    answer = ask(subject, problem)
    if answer.failure is not None or answer.malformed:
        return
    for name in problem.inputs:
        gradient = answer.tensors.get(f"d{name}")
        if gradient is None or not bool(gradient.isfinite().all()) or not bool(gradient.any()):
            continue
        for direction, towards in _directions(gradient.double(), problem.inputs[name].double()):
            found = [slope for step in _STEPS if (slope := _slope(subject, problem, name, towards * step, direction))]
            if found:
                yield min(found, key=lambda slope: slope.noise + slope.curvature)


def _directions(gradient: Tensor, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Along the gradient itself, and along the half of it that belongs to the last positions."""
    size = value.norm() / gradient.norm()
    yield "the gradient", gradient * size
    if gradient.ndim == 4 and gradient.shape[1] > 1:
        late = gradient.clone()
        late[:, : gradient.shape[1] // 2] = 0
        if bool(late.any()):
            yield "its last half of positions", late * (value[:, gradient.shape[1] // 2 :].norm() / late.norm())


def _slope(subject: FunctionSubject, problem: Problem, name: str, step: Tensor, direction: str) -> Slope | None:
    value = problem.inputs[name].double()
    points = [with_inputs(problem, **{name: value + sign * step}) for sign in (-1.0, 0.0, 1.0)]
    answers = [ask(subject, point, Asking(wants=(name,))) for point in points]
    if any(f"d{name}" not in answer.tensors for answer in answers):
        return None
    inputs = [point.inputs[name].double() for point in points]
    gradients = [answer.tensors[f"d{name}"].double() for answer in answers]
    outs = [answer.tensors["out"].double() * problem.dout.double() for answer in answers]
    if not all(bool(each.isfinite().all()) for each in (*gradients, *outs)):
        return None
    moved = inputs[2] - inputs[0]
    weights = (1 / 6, 4 / 6, 1 / 6)
    predicted = float(sum(weight * (each * moved).sum() for weight, each in zip(weights, gradients, strict=True)))
    rough = float(((gradients[0] + gradients[2]) / 2 * moved).sum())
    seen = float((outs[2] - outs[0]).sum())
    eps = torch.finfo(problem.dout.dtype).eps
    noise = eps * float(torch.sqrt((outs[0].square() + outs[2].square()).sum() / 12))
    scale = max(abs(seen), 1e-300)
    return Slope(
        problem=points[1],
        answer=answers[1],
        tensor=f"d{name}",
        direction=direction,
        predicted=predicted,
        seen=seen,
        noise=noise / scale,
        curvature=abs(predicted - rough) / max(abs(predicted), 1e-300) / 10,
    )
