"""FUN101 call-fails

Detects: a call that raises where the function claims to serve, by an error of an operation and not by a refusal in
words; an ordinary input that it does not serve at all.
Matters: a length that raises ends a run hours after it began.
Fix: serve the shape, or raise ValueError or NotImplementedError that names what is not served.

Example:
    # faulty
    tiles = k.view(batch, heads, -1, 64, dim)  # the view fails unless 64 divides the length
    # correct
    tiles = pad(k, (0, 0, 0, -k.shape[2] % 64)).view(batch, heads, -1, 64, dim)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nsa_doctor.checks._shared.of_function import conditions, found, injected, refused
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.calling import Answer, ask
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.subject.function import FunctionSubject, Problem


def run(subject: FunctionSubject) -> Iterator[Finding | Note]:
    base = shapes.base(subject)
    if subject.gradient_refusal:
        yield Note(message=f"examined without gradients, which are not served here: {subject.gradient_refusal}")
    problem = problem_of(subject, base)
    answer = ask(subject, problem)
    if answer.failure is not None:
        yield _failed(subject, problem, answer, "an ordinary input")
        return
    if why := shapes.left_out(subject):
        yield Note(message=why)
    asked = []
    for shape in shapes.square(subject):
        problem = problem_of(subject, shape)
        answer = ask(subject, problem)
        asked.append((problem, answer))
        if answer.failure is not None and not answer.failure.is_refusal:
            yield _failed(subject, problem, answer, f"this input and answers {base}")
            return
    others = (problem_of(subject, shape) for shape in (*shapes.unequal(subject), *shapes.other_sizes(subject)))
    asked += [(problem, ask(subject, problem)) for problem in others]
    yield from refused(subject, asked)


def _failed(subject: FunctionSubject, problem: Problem, answer: Answer, what: str) -> Finding:
    failure = answer.failure
    assert failure is not None
    message = f"{subject.name} raises {failure.sentence} in {failure.phase} {conditions(subject, problem)}"
    finding = found(subject, "FUN101", f"{message}: it does not serve {what}", problem, answer, {"kind": "raised"})
    return replace(finding, where=failure.place)


def planted(subject: FunctionSubject) -> FunctionSubject:
    def needs_an_even_length(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        out = result if hasattr(result, "shape") else result[0]
        rows = (
            out
            if subject.convention.layout == "shd"
            else out.transpose(0, 1 if subject.convention.layout == "bshd" else 2)
        )
        rows.reshape(2, rows.shape[0] // 2, -1)
        return result

    return injected(subject, needs_an_even_length)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="function", profile="smoke", priority=220)
