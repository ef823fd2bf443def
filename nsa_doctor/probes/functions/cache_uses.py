"""What a function of a cache may be asked beyond its spec: to append tokens, read by pages, take rows by number."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.functions.binding import parameters_of
from nsa_doctor.probes.functions.calling import Answer, Asking, ask
from nsa_doctor.probes.functions.measured import Measured, bounds_of
from nsa_doctor.probes.functions.problems import Draw, problem_of
from nsa_doctor.probes.functions.uses import Use
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

_SEED = 71
_PAGES = {16: 0, 256: 600}  # tokens of a page, and how many keys there are at least; some functions take one alone


@dataclass(frozen=True, kw_only=True, eq=False)
class Appended:
    """A tensor that is wrong after tokens were to be appended: the output, or a cache."""

    tensor: str
    problem: Problem
    answer: Answer
    text: str


def by_number(subject: FunctionSubject, shape: Shape) -> Iterator[Use]:
    """A cache in pages of any order, and rows of a larger cache; simpler a row in one page, and rows in their order."""
    names = parameters_of(subject.function).defaults
    for name in ("block_table", "page_table"):
        if name in names:
            yield from (_by_pages(subject, shape, name, page) for page in _PAGES)
    problem, rows = problem_of(subject, shape, Draw(seed=_SEED)), torch.arange(shape.batch)
    if "cache_batch_idx" in names and shape.batch > 1:
        use = _of_rows(problem, rows.flip(0)), _of_rows(problem, rows)
        yield Use(what="with cache_batch_idx", subject=subject, problem=use[0], simpler=use[1])


def _by_pages(subject: FunctionSubject, shape: Shape, name: str, page: int) -> Use:
    keys = max(shape.keys, _PAGES[page])
    filled = tuple(keys - (shape.keys - each) for each in shape.filled)
    problem = problem_of(subject, replace(shape, keys=keys, filled=filled), Draw(seed=_SEED))
    alone = problem_of(subject, replace(shape, keys=keys, batch=1, filled=filled[:1]), Draw(seed=_SEED))
    count = -(-keys // page)
    mixed = torch.randperm(shape.batch * count, generator=torch.Generator().manual_seed(_SEED))
    return Use(
        what=f"with a {name}",
        subject=subject,
        problem=_paged(problem, name, mixed.view(shape.batch, count), page),
        simpler=_paged(alone, name, torch.zeros(1, 1, dtype=torch.long), count * page),
    )


def _paged(problem: Problem, name: str, table: Tensor, size: int) -> Problem:
    """The same keys and values in pages of that many, each where the table says."""
    caches = {}
    for kind in "kv":
        value = problem.inputs[kind]
        whole = torch.nn.functional.pad(value, (0, 0, 0, 0, 0, -value.shape[1] % size))
        pages = whole.unflatten(1, (-1, size)).flatten(0, 1)
        caches[kind] = torch.empty_like(pages).index_copy_(0, table.flatten(), pages)
    return _given(problem, caches, {name: table.to(torch.int32)})


def _of_rows(problem: Problem, rows: Tensor) -> Problem:
    caches = {kind: torch.empty_like(problem.inputs[kind]).index_copy_(0, rows, problem.inputs[kind]) for kind in "kv"}
    return _given(problem, caches, {"cache_batch_idx": rows.to(torch.int32)})


def _given(problem: Problem, caches: Mapping[str, Tensor], more: Mapping[str, Tensor], count: int = 0) -> Problem:
    constants = {"caches": dict(caches), "more": dict(more), "num_appended": count}
    return replace(problem, constants={**problem.constants, **constants})


def appended(subject: FunctionSubject, shape: Shape) -> Iterator[Appended]:
    """What is wrong where new keys and values are given, and some cache is written to."""
    if not {"k", "v"} <= parameters_of(subject.function).defaults.keys():
        return
    count, filled = shape.queries, tuple(min(shape.keys, max(each, shape.queries + 1)) for each in shape.filled)
    problem = problem_of(subject, replace(shape, filled=filled), Draw(seed=_SEED))
    caches = {kind: problem.inputs[kind].clone() for kind in "kv"}
    before = {kind: _without_new(caches[kind], filled, count) for kind in "kv"}
    new = {
        kind: torch.stack([problem.inputs[kind][row, end - count : end] for row, end in enumerate(filled)])
        for kind in "kv"
    }
    given = {kind: before[kind].clone().to(subject.device) for kind in "kv"}
    asked = _given(problem, given, {kind: value.to(subject.device) for kind, value in new.items()}, count)
    answer = attempt(lambda: ask(subject, asked, Asking(wants=())))
    if isinstance(answer, Caught) or "out" not in answer.tensors:
        return
    if all(torch.equal(given[kind].cpu(), before[kind]) for kind in "kv"):
        return  # it means something else by them
    for each in _judged(subject, problem, answer, given):
        yield replace(each, problem=asked)


def _without_new(cache: Tensor, filled: tuple[int, ...], count: int) -> Tensor:
    cache = cache.clone()
    for row, end in enumerate(filled):
        cache[row, end - count : end] = -cache[row, end - count : end] + 1
    return cache


def _judged(
    subject: FunctionSubject, problem: Problem, answer: Answer, given: Mapping[str, Tensor]
) -> Iterator[Appended]:
    measured = Measured(problem=problem, answer=answer, bounds=bounds_of(subject, problem, answer))
    excess = measured.excess("out")
    if excess is not None:
        text = f"out is off by {excess.error:.2g} (tolerance {excess.bound:.2g}) where tokens are appended by the call"
        yield Appended(tensor="out", problem=problem, answer=answer, text=text)
    for kind, cache in given.items():
        wrong = (cache.cpu() != problem.inputs[kind]).flatten(2).any(-1)
        if bool(wrong.any()):
            row, position = (int(i) for i in wrong.nonzero()[0])
            text = f"{kind}_cache holds other tokens than were given, first in row {row} at position {position}"
            yield Appended(tensor=f"{kind}_cache", problem=problem, answer=answer, text=text)
