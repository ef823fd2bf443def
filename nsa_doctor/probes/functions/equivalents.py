"""Calls that must give the same: a row of the batch alone, heads in another order, doubled values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.probes.functions.bounds import Excess, bounds_between, usual_in
from nsa_doctor.probes.functions.calling import Answer, ask
from nsa_doctor.probes.functions.measured import bounds_of
from nsa_doctor.probes.functions.problems import Draw, problem_of
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

Change = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """A problem made of another, and what it must give made of what that one gives."""

    name: str
    problem: Problem
    expected: Change


def equivalents(subject: FunctionSubject, shape: Shape) -> Iterator[tuple[str, Problem, Answer, Excess]]:
    """Those that give something else, by the first tensor that differs."""
    problem = problem_of(subject, shape, Draw(seed=6))
    plain = ask(subject, problem)
    if plain.failure is not None or plain.malformed:
        return
    dtype, repeated = getattr(torch, subject.dtype), ask(subject, problem)
    for each in _changes(problem):
        answer = ask(subject, each.problem)
        if answer.failure is not None:
            continue  # another size than it serves
        expected: Mapping[str, Tensor] = {
            name: each.expected(name, value)
            for name, value in plain.tensors.items()
            if name in answer.tensors
            if value.ndim > 1 or each.problem.shape.batch == shape.batch  # what is summed over the batch is another sum
        }
        other = {name: each.expected(name, value) for name, value in repeated.tensors.items() if name in expected}
        bounds = bounds_between(each.problem, expected, (other,), dtype)
        found = (bounds.excess(name, answer.tensors[name]) for name in expected)
        known = (excess for excess in found if excess is not None and not _is_uncertain(excess, expected, dtype))
        excess = next(known, None)
        if excess is not None and not _is_right(subject, each.problem, answer, excess.tensor):
            yield each.name, each.problem, answer, excess


def _is_right(subject: FunctionSubject, problem: Problem, answer: Answer, name: str) -> bool:
    """Whether a declared spec says so: the plain call rounds otherwise, or is the one that is wrong."""
    if not subject.spec.is_declared:
        return False
    right = bounds_of(replace(subject, reference=None), problem, answer)
    return name in right.truth and right.excess(name, answer.tensors[name]) is None


def _is_uncertain(excess: Excess, expected: Mapping[str, Tensor], dtype: torch.dtype) -> bool:
    """Whether a difference of that size, beside what is usual, may be weights that each call rounds in its own way."""
    error = excess.error
    if excess.measure == "element":
        error = abs(excess.value - excess.truth) / float(usual_in(expected[excess.tensor].double())[excess.index])
    return error <= _ROUNDINGS * torch.finfo(dtype).eps


_ROUNDINGS = 40


def _changes(problem: Problem) -> Iterator[Equivalent]:
    shape = problem.shape
    if shape.batch > 1:
        last = shape.batch - 1
        yield Equivalent(
            name="the last row of the batch is computed alone",
            problem=_only_row(problem, last),
            expected=lambda name, value: value[last:],
        )
    if shape.groups > 1:
        ratio = shape.heads // shape.groups
        groups = torch.arange(shape.groups).flip(0)
        heads = (groups[:, None] * ratio + torch.arange(ratio)).flatten()
        yield Equivalent(
            name="heads are put in another order",
            problem=_reordered(problem, heads, groups),
            expected=lambda name, value: _by_heads(name, value, heads, groups),
        )
    doubled = {name: value * 2 if name[0] == "v" else value for name, value in problem.inputs.items()}
    yield Equivalent(
        name="values are doubled",
        problem=replace(problem, inputs=doubled),
        expected=lambda name, value: value if name == "lse" or name[:2] == "dv" else value * 2,
    )


def _only_row(problem: Problem, row: int) -> Problem:
    shape = problem.shape
    filled = shape.filled[row : row + 1]
    inputs = {name: value[row : row + 1] if value.ndim > 1 else value for name, value in problem.inputs.items()}
    branches = tuple(
        replace(each, seen=each.seen[row : row + 1] if each.seen.shape[0] > 1 else each.seen)
        for each in problem.branches
    )
    dout = problem.dout[row : row + 1]
    small = replace(shape, batch=1, filled=filled)
    constants = _of_constants(problem, lambda value: value[row : row + 1])
    return replace(problem, shape=small, inputs=inputs, branches=branches, dout=dout, constants=constants)


def _of_constants(problem: Problem, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """What is given beside inputs; its tensors, a choice of blocks [B, S, G, n], are changed as the inputs are."""
    return {name: change(value) if isinstance(value, Tensor) else value for name, value in problem.constants.items()}


def _reordered(problem: Problem, heads: Tensor, groups: Tensor) -> Problem:
    inputs = {name: _by_heads(f"d{name}", value, heads, groups) for name, value in problem.inputs.items()}
    branches = tuple(
        replace(each, seen=each.seen[:, heads] if each.seen.shape[1] > 1 else each.seen) for each in problem.branches
    )
    slopes = None if problem.slopes is None else problem.slopes[heads]
    constants = _of_constants(problem, lambda value: value[:, :, groups])
    dout = problem.dout[:, :, heads]
    return replace(problem, inputs=inputs, branches=branches, dout=dout, slopes=slopes, constants=constants)


def _by_heads(name: str, value: Tensor, heads: Tensor, groups: Tensor) -> Tensor:
    if name == "lse":
        return value[:, heads]
    if value.ndim == 1:
        return value[heads]
    return value[:, :, groups if value.shape[2] == len(groups) else heads]
