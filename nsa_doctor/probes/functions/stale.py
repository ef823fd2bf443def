"""Whether an answer belongs to the call that it is given to, and stays what it was."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.functions.calling import Answer, Asking, ask, call_with, laid_out
from nsa_doctor.probes.functions.layout import from_layout, to_layout
from nsa_doctor.probes.functions.measured import Measured, bounds_of
from nsa_doctor.probes.functions.problems import Draw, problem_of, with_inputs
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

Kept = tuple[str, Problem, Answer, str]
_ROUNDS = 3
_ROUNDINGS = 64


def stale(subject: FunctionSubject, shape: Shape) -> list[Kept] | None:
    """What is wrong, as (what was done, problem, answer, tensor); None where the function does not serve the shape."""
    first, second = (problem_of(subject, shape, Draw(seed=seed)) for seed in (11, 12))
    answers = [ask(subject, problem) for problem in (first, second)]
    if any("out" not in answer.tensors for answer in answers):
        return None
    found = [*_other_values(subject, (first, second), answers), *_same_memory(subject, first), *_freed(subject, shape)]
    return [*found, *_overwritten(subject, first, second)]


def _other_values(subject: FunctionSubject, problems: tuple[Problem, ...], answers: list[Answer]) -> Iterator[Kept]:
    for name, tensor in answers[0].tensors.items():
        other = answers[1].tensors.get(name)
        if other is not None and tensor.shape == other.shape and torch.equal(tensor, other) and bool(tensor.any()):
            yield f"{name} is the same for other values of the same shape", problems[1], answers[1], name
            return


def _same_memory(subject: FunctionSubject, problem: Problem) -> Iterator[Kept]:
    """Call, change the values where they lie, call again: all of them, the order of rows, one row."""
    changes = {
        "after all values were replaced in place": {
            name: value.flip(0, 1).roll(1, -1) for name, value in _large(problem)
        },
        "after the rows of the values were put in another order in place": _of("v", problem, lambda v: v.flip(1)),
        "after the rows of the keys were put in another order in place": _of("k", problem, lambda k: k.flip(1)),
        "after one row of the values, in the middle, was replaced in place": _of("v", problem, _one_row),
    }
    for what, inputs in changes.items():
        tensors = laid_out(subject, problem, Asking(wants=()))
        changed = with_inputs(problem, **inputs)
        before = attempt(lambda tensors=tensors: _out(call_with(subject, problem, tensors)))
        for name, value in changed.inputs.items():
            tensors[name].copy_(to_layout(value.to(subject.device), subject.convention.layout))
        after = attempt(lambda tensors=tensors, changed=changed: _out(call_with(subject, changed, tensors)))
        if isinstance(before, Caught) or isinstance(after, Caught):
            continue
        fresh = ask(subject, changed, Asking(wants=()))
        is_kept = torch.equal(before, after) or not _is_alike(after, fresh, subject)
        if is_kept and _is_wrong(subject, changed, after, fresh):
            yield f"{what}, out is {'that of before' if torch.equal(before, after) else 'wrong'}", changed, fresh, "out"
            return


def _freed(subject: FunctionSubject, shape: Shape) -> Iterator[Kept]:
    """Tensors that come and go: the next ones often lie where the last ones did."""
    earlier: list[Tensor] = []
    for round_number in range(_ROUNDS):
        problem = problem_of(subject, shape, Draw(seed=20 + round_number))
        answer = ask(subject, problem, Asking(wants=()))
        again = ask(subject, problem, Asking(wants=()))
        if "out" not in answer.tensors or "out" not in again.tensors:
            return
        out = _canonical(answer, subject)
        is_kept = any(torch.equal(out, each) for each in earlier) or not _is_alike(out, again, subject)
        earlier.append(out)
        if is_kept and _is_wrong(subject, problem, out, again):
            yield "out is wrong for values in memory that was used before", problem, answer, "out"
            return


def _overwritten(subject: FunctionSubject, first: Problem, second: Problem) -> Iterator[Kept]:
    answer = ask(subject, first, Asking(wants=(), keeps_raw=True))
    if not isinstance(answer.raw, Tensor):
        return
    kept = answer.raw.detach().clone()
    ask(subject, second, Asking(wants=()))
    if not torch.equal(kept, answer.raw.detach()) and bool(kept.isfinite().all()):
        yield "its output of an earlier call changes with the next call", first, answer, "out"


def _is_alike(out: Tensor, fresh: Answer, subject: FunctionSubject) -> bool:
    """Whether a call on copies gives the same, rounding apart."""
    other = _canonical(fresh, subject).to(out)
    return bool(((out - other).abs() <= _ROUNDINGS * torch.finfo(out.dtype).eps * (1 + other.abs())).all())


def _is_wrong(subject: FunctionSubject, problem: Problem, out: Tensor, fresh: Answer) -> bool:
    """Whether an output, in the layout of the function, is not right; without an oracle, not that of copies."""
    bounds = bounds_of(replace(subject, reference=None) if subject.spec.is_declared else subject, problem, fresh)
    measured = Measured(problem=problem, answer=fresh, bounds=bounds)
    value = from_layout(out.detach().cpu(), subject.convention.output or subject.convention.layout)
    return measured.compare("out", value) is not None


def _canonical(answer: Answer, subject: FunctionSubject) -> Tensor:
    return to_layout(answer.tensors["out"], subject.convention.output or subject.convention.layout)


def _out(result: Mapping[str, Tensor]) -> Tensor:
    return result["out"].detach().clone()


def _of(kind: str, problem: Problem, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    return {name: change(value) for name, value in problem.inputs.items() if name[0] == kind and value.shape[1]}


def _large(problem: Problem) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in problem.inputs.items() if value.ndim == 4 and name[0] in "qkv"]


def _one_row(value: Tensor) -> Tensor:
    changed = value.clone()
    changed[:, value.shape[1] // 2] = -2 * changed[:, value.shape[1] // 2]
    return changed
