"""FUN201 reads-other-keys

Detects: a query that reads a key which the declared mask hides, or does not read one that it shows: a causal mask or a
window that is off by one, a mask aligned at the other corner, sequences that leak into each other, a tile left out.
Matters: reading the future makes a loss that is too good and a model that cannot generate; a dropped key is lost.
Fix: compare the bound of the loop over keys, and the mask inside of the tile, with the pair of positions named.

Example:
    # faulty
    scores = scores.masked_fill(keys > queries + 1, -inf)
    # correct
    scores = scores.masked_fill(keys > queries, -inf)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.calling import Answer
from nsa_doctor.probes.functions.layout import from_layout, to_layout
from nsa_doctor.probes.functions.measured import measured
from nsa_doctor.probes.functions.reach import Reach, reaches
from nsa_doctor.probes.functions.reach_words import pairs_text
from nsa_doctor.subject.function import FunctionSubject, Shape


def run(subject: FunctionSubject) -> Iterator[Finding]:
    if not subject.spec.is_declared:
        raise NotApplicableError("no --spec says which keys are read")
    if not subject.convention.has_one_pair:
        raise NotApplicableError("each of its branches has keys and values of its own")
    reported: set[str] = set()
    for shape in _shapes(subject):
        for reach in reaches(subject, shape):
            for finding in _judged(subject, reach):
                kind = str(finding.evidence["property"])
                if kind not in reported and not (reach.direction == "backward" and "forward" in " ".join(reported)):
                    reported.add(kind)
                    yield finding


def _shapes(subject: FunctionSubject) -> Iterator[Shape]:
    for shape in (*shapes.square(subject), *shapes.unequal(subject)):
        yield replace(shape, batch=min(shape.batch, 2))


def _judged(subject: FunctionSubject, reach: Reach) -> Iterator[Finding]:
    pairs = {
        "reads": ("reads keys that the declared mask hides", reach.undeclared),
        "misses": ("does not read keys that the declared mask shows", reach.missing),
    }
    if reach.direction == "backward" and not reach.is_about_reach:
        return
    of = "" if reach.direction == "forward" else "the backward pass of "
    for name, (what, wrong) in pairs.items():
        if bool(wrong.any()):
            text = pairs_text(wrong, reach.problem)
            query, key = (int(x) for x in wrong.any(0).any(0).nonzero()[0])
            tensor = "out" if reach.direction == "forward" else "dv"
            evidence: dict[str, Scalar] = {
                "tensor": tensor,
                "property": f"{name} {reach.direction}",
                "query": query,
                "key": key,
                "pairs": int(wrong.sum()),
            }
            message = f"{of}{subject.name} {what} {conditions(subject, reach.problem)}: {text}"
            answer, gradients = _of_all(subject, reach)
            is_backward = reach.direction == "backward"
            problem = reach.problem
            yield found(subject, "FUN201", message, problem, answer, evidence, is_backward, "", gradients, "masks")


def _of_all(subject: FunctionSubject, reach: Reach) -> tuple[Answer, tuple[str, ...]]:
    """The answer with all gradients at that shape, and those that are wrong."""
    result = measured(subject, reach.problem.shape)
    return result.answer, result.wrong_gradients(result.answer.tensors) or ("dv",)


def planted(subject: FunctionSubject) -> FunctionSubject:
    layout = subject.convention.output or subject.convention.layout

    def adds_what_follows(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        out = from_layout(result if isinstance(result, Tensor) else result[0], layout)
        tensors = [each for each in positional if isinstance(each, Tensor) and each.is_floating_point()]
        v = from_layout(tensors[2], subject.convention.layout).repeat_interleave(subject.spec.ratio, 2)
        following = torch.cat([v[:, 1:], torch.zeros_like(v[:, :1])], 1)
        return to_layout(out + 0.1 * following, layout) if out.shape == v.shape else result

    return injected(subject, adds_what_follows)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    priority=410,
)
