"""FUN502 unwritten-memory-returned

Detects: an output or a gradient that holds memory which nobody wrote: torch.empty of which a last tile, a row without
keys or a head is left out; keys of a cache beyond the length that is filled.
Matters: fresh memory is often zero, and so is the test; in training it holds numbers of another tensor.
Fix: write every element, with zeros where a row reads no key, or begin with torch.zeros.

Example:
    # faulty
    out = torch.empty_like(q)  # rows of the last tile stay as they are
    # correct
    out = torch.zeros_like(q)
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.calling import ask
from nsa_doctor.probes.functions.measured import measured
from nsa_doctor.probes.functions.poison import beyond_what_is_filled, poisoned, zeroed
from nsa_doctor.subject.function import FunctionSubject

_LENGTHS = {"smoke": (17, 64), "quick": (1, 17, 50, 64, 65), "full": (1, 2, 17, 31, 50, 63, 64, 65, 100, 129)}


def run(subject: FunctionSubject) -> Iterator[Finding]:
    for length in _LENGTHS[subject.profile]:
        base = measured(subject, shapes.at_length(subject, length))
        with zeroed():
            plain = ask(subject, base.problem)
        with poisoned():
            answer = ask(subject, base.problem)
        for name, value in answer.tensors.items():
            if not bool(value.isfinite().all()) and bool(plain.tensors[name].isfinite().all()):
                count = int((~value.isfinite()).sum())
                message = f"{name} of {subject.name} holds {count} elements that nobody wrote"
                message += f" {conditions(subject, base.problem)}"
                evidence: dict[str, Scalar] = {"tensor": name, "target": name, "elements": count}
                yield found(subject, "FUN502", message, base.problem, answer, evidence, name.startswith("d"))
                return
        if base.problem.shape.filled:
            answer = ask(subject, beyond_what_is_filled(base.problem))
            excess = base.first_excess(answer.tensors)
            if excess is not None and base.first_excess(base.answer.tensors) is None:
                message = f"{excess.tensor} of {subject.name} depends on keys beyond those that its cache holds"
                text = f"{message} {conditions(subject, base.problem)}"
                yield found(subject, "FUN502", text, base.problem, answer, {"tensor": excess.tensor})
                return


def planted(subject: FunctionSubject) -> FunctionSubject:
    def leaves_the_last_out(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        out = result if isinstance(result, Tensor) else result[0]
        made = torch.empty_like(out)
        made[..., 1:] = out[..., 1:]
        return made

    return injected(subject, leaves_the_last_out)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    priority=402,
)
