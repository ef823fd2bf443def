"""FUN503 answer-of-another-call

Detects: an answer that was kept from an earlier call: by shape, by address, by object, by a sum over the input; an
output that changes when the function is called again; gradients that are another call's where two calls interleave,
where one graph is run back twice, or while they are kept.
Matters: it passes every test that calls it once; in training each step gets the first one's answer.
Fix: keep nothing between calls but what ctx.save_for_backward keeps, and return memory of each call's own.

Example:
    # faulty
    key = (q.shape, q.data_ptr())
    # correct
    out = attend(q, k, v)
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.interleaved import disturbed
from nsa_doctor.probes.functions.stale import stale
from nsa_doctor.subject.function import FunctionSubject

_LENGTH = 41


def run(subject: FunctionSubject) -> Iterator[Finding]:
    shape = shapes.at_length(subject, _LENGTH)
    kept = stale(subject, shape)
    if kept is None:
        raise NotComparableError(f"it does not serve {shape}")
    for what, problem, answer, tensor in kept[:1]:
        message = f"{subject.name} gives the answer of another call {conditions(subject, problem)}: {what}"
        evidence = {"tensor": tensor, "target": tensor, "property": what.partition(",")[0]}
        yield found(subject, "FUN503", message, problem, answer, evidence, tensor.startswith("d"))
    reported = {tensor for *_, tensor in kept[:1]}
    for each in disturbed(subject, shape):
        if each.tensor not in reported:
            reported.add(each.tensor)
            where = conditions(subject, each.measured.problem)
            message = f"{each.tensor} of {subject.name} is not that of its own call {where}: {each.what}"
            evidence = {"tensor": each.tensor, "target": each.tensor, "property": each.what}
            answer, is_backward = each.measured.answer, each.tensor.startswith("d")
            wrong = each.measured.wrong_gradients(answer.tensors)
            yield found(subject, "FUN503", message, each.measured.problem, answer, evidence, is_backward, wrong=wrong)
            return


def planted(subject: FunctionSubject) -> FunctionSubject:
    kept: dict[Any, Any] = {}

    def remembers(*positional: Any, **keywords: Any) -> Any:
        tensors = [each for each in positional if isinstance(each, Tensor)]
        if any(each.requires_grad for each in tensors):
            return subject.function(*positional, **keywords)
        key = (*(each.shape for each in tensors), tensors[0].data_ptr())
        if key not in kept:
            kept[key] = (tensors, subject.function(*positional, **keywords))  # its inputs stay, and their addresses
        return torch.clone(kept[key][1]) if isinstance(kept[key][1], Tensor) else kept[key][1]

    return injected(subject, remembers)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    priority=405,
)
