"""Queries that may read no key: rows of a mask that hide all, queries before the first key, sequences without keys.

What such a query gives is zero in most kernels and a mean in some; but it is finite, and it is nobody else's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nsa_doctor.probes.functions.binding import is_given_all
from nsa_doctor.probes.functions.bounds import Excess
from nsa_doctor.probes.functions.calling import Answer, Asking, ask, laid_out
from nsa_doctor.probes.functions.measured import Measured, bounds_of
from nsa_doctor.probes.functions.poison import poisoned
from nsa_doctor.probes.functions.problems import Draw, problem_of
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

_SEED = 61
_EVERY = 5  # of so many queries one reads nothing, beginning with the row's own number


@dataclass(frozen=True, kw_only=True, eq=False)
class Keyless:
    """A problem with queries that read no key, what was answered, and the first tensor that is wrong."""

    what: str
    problem: Problem
    answer: Answer
    tensor: str
    rows: str
    excess: Excess | None


def keyless(subject: FunctionSubject, shape: Shape) -> Iterator[Keyless]:
    """Those whose answer is not finite, or wrong elsewhere."""
    for what, other, problem in _problems(subject, shape):
        if not _is_offered(other, problem):
            continue
        is_empty = ~problem.seen.any(-1).expand(problem.shape.batch, problem.shape.heads, -1).transpose(1, 2)
        problem = replace(problem, dout=problem.dout.masked_fill(is_empty[..., None], 0.0))
        with poisoned():
            answer = ask(other, problem)
        if answer.failure is None and not answer.malformed:
            yield from _judged(other, problem, answer, is_empty, what)


def _judged(
    subject: FunctionSubject, problem: Problem, answer: Answer, is_empty: Tensor, what: str
) -> Iterator[Keyless]:
    for name, value in answer.tensors.items():
        if name != "lse" and not bool(value.isfinite().all()):
            rows = f"{int((~value.isfinite()).flatten(0, -2).any(-1).sum())} rows of {name} are not finite"
            yield Keyless(what=what, problem=problem, answer=answer, tensor=name, rows=rows, excess=None)
            return
    measured = Measured(problem=problem, answer=answer, bounds=bounds_of(subject, problem, answer))
    tensors = {name: value for name, value in answer.tensors.items() if name != "lse"}
    tensors["out"] = tensors["out"].masked_fill(is_empty[..., None], 0.0)
    excess = measured.first_excess(tensors)
    if excess is not None:
        rows = f"{excess.tensor} is wrong elsewhere, in {excess.num_wrong} of {excess.num_rows} rows"
        yield Keyless(what=what, problem=problem, answer=answer, tensor=excess.tensor, rows=rows, excess=excess)


def _problems(subject: FunctionSubject, shape: Shape) -> Iterator[tuple[str, FunctionSubject, Problem]]:
    convention, spec = subject.convention, subject.spec
    if convention.make is not None:
        return
    if convention.has_parts:
        yield from _sequences(subject, shape)
    elif convention.is_cache:
        filled = (0, *shape.filled[1:])
        yield "one row of the cache holds no key", subject, problem_of(subject, replace(shape, filled=filled), _DRAW)
    else:
        if spec.is_causal and not spec.is_square and (spec.align or convention.align) == "bottom_right":
            for count, what in ((20, "more"), (_MANY, "far more")):
                more = replace(shape, queries=shape.queries + count)
                yield f"there are {what} queries than keys", subject, problem_of(subject, more, _DRAW)
        yield from _masked(subject, shape)


_DRAW = Draw(seed=_SEED)
_MANY = 270  # queries without a key, so that whole tiles of them read nothing


def _sequences(subject: FunctionSubject, shape: Shape) -> Iterator[tuple[str, FunctionSubject, Problem]]:
    without_keys = replace(shape, queries=48, keys=37, parts=((20, 20), (11, 0), (17, 17)))
    without_queries = replace(shape, queries=37, keys=48, parts=((20, 20), (0, 11), (17, 17)))
    if subject.spec.is_causal and not subject.spec.is_square:
        parts = ((20, 20), (_MANY + 9, 9), (17, 17))
        many = replace(shape, queries=_MANY + 46, keys=46, parts=parts)
        yield "one sequence has far more queries than keys", subject, problem_of(subject, many, _DRAW)
    yield "one sequence has no keys", subject, problem_of(subject, without_keys, _DRAW)
    yield "one sequence has no queries", subject, problem_of(subject, without_queries, _DRAW)


def _masked(subject: FunctionSubject, shape: Shape) -> Iterator[tuple[str, FunctionSubject, Problem]]:
    """A mask that hides every key of some queries, other ones in each row of the batch."""
    if "mask" in subject.convention.refuses or subject.spec.has_alibi:
        return
    words = subject.spec.words if subject.spec.has_mask else (*subject.spec.words, "mask")
    other = replace(subject, spec=replace(subject.spec, has_mask=True, words=words), known={})
    problem = problem_of(other, shape, _DRAW)
    (branch,) = problem.branches
    query, row = torch.arange(shape.queries), torch.arange(shape.batch)[:, None]
    is_empty = (query % _EVERY == row + 1)[:, None, :, None]
    seen = branch.seen & ~is_empty
    yield "a mask hides every key of some queries", other, replace(problem, branches=(replace(branch, seen=seen),))


def _is_offered(subject: FunctionSubject, problem: Problem) -> bool:
    """Whether the function takes every argument that the call gives."""
    asked = subject.convention.arguments(problem, laid_out(subject, problem, Asking(wants=())))
    return is_given_all(subject.function, asked.keywords)
