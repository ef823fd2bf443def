"""Gradients of one call while others are made: between its forward and its backward, before it, after it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from nsa_doctor.probes.functions.calling import ask
from nsa_doctor.probes.functions.measured import Measured, measured_problem
from nsa_doctor.probes.functions.pending import begun, canonical, raw_gradients
from nsa_doctor.probes.functions.problems import Draw, problem_of, with_inputs
from nsa_doctor.probes.functions.shapes import of_length
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape


@dataclass(frozen=True, kw_only=True, eq=False)
class Disturbed:
    """A tensor of a call that is another one in the company of other calls: which, and what was done."""

    what: str
    tensor: str
    measured: Measured


def disturbed(subject: FunctionSubject, shape: Shape) -> Iterator[Disturbed]:
    """Each that is wrong where the call by itself is right."""
    first, second = (problem_of(subject, shape, Draw(seed=seed)) for seed in (41, 42))
    alone = measured_problem(subject, first)
    if alone.answer.failure is not None or alone.first_excess(alone.answer.tensors) is not None:
        return
    yield from _after_others(subject, first, second)
    if subject.has_gradients:
        yield from _two_forwards(subject, alone, second)
        yield from _two_backwards(subject, alone)
        yield from _kept_gradients(subject, alone, second)


def _two_forwards(subject: FunctionSubject, alone: Measured, second: Problem) -> Iterator[Disturbed]:
    """As two layers of a model are called."""
    mine = begun(subject, alone.problem)
    if mine is None or begun(subject, second) is None:
        return
    found = canonical(subject, raw_gradients(subject, mine))
    yield from _wrong(alone, found, "another call was made between its forward and its backward")


def _two_backwards(subject: FunctionSubject, alone: Measured) -> Iterator[Disturbed]:
    """As two losses of one output."""
    mine = begun(subject, alone.problem)
    if mine is None or not raw_gradients(subject, mine, keeps_graph=True):
        return
    again = canonical(subject, raw_gradients(subject, mine))
    yield from _wrong(alone, again, "its backward was run a second time, the graph being retained")


def _kept_gradients(subject: FunctionSubject, alone: Measured, second: Problem) -> Iterator[Disturbed]:
    """As gradients are kept in `.grad` until the optimizer's step."""
    mine = begun(subject, alone.problem)
    kept = {} if mine is None else raw_gradients(subject, mine)
    other = begun(subject, second)
    if kept and other is not None:
        raw_gradients(subject, other)
        yield from _wrong(alone, canonical(subject, kept), "the gradients were kept while another call was made")


def _after_others(subject: FunctionSubject, first: Problem, second: Problem) -> Iterator[Disturbed]:
    shape = first.shape
    longer = of_length(subject, shape, 2 * shape.queries, 2 * shape.keys)
    if not subject.convention.is_cache:
        ask(subject, problem_of(subject, longer, Draw(seed=43)))
        yield from _judged(subject, first, "a call on twice the length was made before")
    ask(subject, first)
    yield from _judged(subject, second, "a call of the same shape with other values was made before")
    for what, problem in _alike(first, second):
        ask(subject, first)
        yield from _judged(subject, problem, f"a call was made before whose inputs have {what}")


def _alike(first: Problem, second: Problem) -> Iterator[tuple[str, Problem]]:
    """Problems that a hasty look takes for the first one."""
    names = [name for name in first.inputs if first.inputs[name].ndim == 4 and first.inputs[name].shape[1] > 1]
    for what, part in (("the same first position", slice(0, 1)), ("the same last position", slice(-1, None))):
        inputs = {}
        for name in names:
            inputs[name] = second.inputs[name].clone()
            inputs[name][:, part] = first.inputs[name][:, part]
        yield what, with_inputs(second, **inputs)
    if not first.shape.parts and not first.constants:
        turned = {name: first.inputs[name].flip(1) for name in names if name[0] in "kv"}
        yield "the same sum", with_inputs(first, **turned)


def _judged(subject: FunctionSubject, problem: Problem, what: str) -> Iterator[Disturbed]:
    result = measured_problem(subject, problem)
    yield from _wrong(result, result.answer.tensors, what)


def _wrong(result: Measured, tensors: Mapping[str, Tensor], what: str) -> Iterator[Disturbed]:
    excess = result.first_excess(tensors)
    if excess is not None:
        answer = replace(result.answer, tensors={**result.answer.tensors, **tensors})
        yield Disturbed(what=what, tensor=excess.tensor, measured=replace(result, answer=answer))
