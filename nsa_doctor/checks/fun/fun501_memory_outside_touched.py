"""FUN501 memory-outside-touched

Detects: a call that writes beyond its inputs, lets what lies beyond them into its answer, or changes the inputs.
Matters: beside a tensor lies another one: of the optimizer, of the next layer. Nothing raises.
Fix: mask every load and store of the last tile by the real length, and write to tensors of your own.

Example:
    # faulty
    value = torch.as_strided(v, (tiles * BLOCK, dim), (dim, 1))  # the last tile goes on behind the tensor
    # correct
    value = pad(v, (0, 0, 0, tiles * BLOCK - len(v)))
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.calling import Asking, ask
from nsa_doctor.probes.functions.measured import measured
from nsa_doctor.probes.functions.memory_layouts import Guards
from nsa_doctor.subject.function import FunctionSubject

_LENGTHS = {"smoke": (17, 50), "quick": (1, 17, 50, 65), "full": (1, 17, 31, 50, 63, 65, 129)}


def run(subject: FunctionSubject) -> Iterator[Finding]:
    for length in _LENGTHS[subject.profile]:
        base = measured(subject, shapes.at_length(subject, length))
        where = conditions(subject, base.problem)
        if base.answer.changed:
            names = ", ".join(base.answer.changed)
            message, evidence = f"{subject.name} writes to its inputs {names} {where}", _named(base.answer.changed[0])
            is_backward = base.answer.changed == ("dout",)
            yield found(subject, "FUN501", message, base.problem, base.answer, evidence, is_backward)
            return
        for fill in (math.nan, 1e4):
            guards = Guards(fill)
            answer = ask(subject, base.problem, Asking(arrange=guards.arrange))
            if written := guards.written():
                parts = ", ".join(f"{count} elements beside {name}" for name, count in written.items())
                message = f"{subject.name} writes beyond its inputs {where}: {parts} are overwritten"
                yield found(subject, "FUN501", message, base.problem, answer, {"tensor": next(iter(written))})
                return
            excess = base.first_excess(answer.tensors)
            if excess is not None and base.first_excess(base.answer.tensors) is None:
                what = f"{excess.tensor} changes with what lies beside them"
                message = f"{subject.name} reads beyond its inputs {where}: {what}"
                evidence = {**_named(excess.tensor), "beside": f"{fill:g}"}
                yield found(subject, "FUN501", message, base.problem, answer, evidence, excess.tensor.startswith("d"))
                return


def _named(tensor: str) -> dict[str, Scalar]:
    return {"tensor": tensor, "target": tensor}


def planted(subject: FunctionSubject) -> FunctionSubject:
    def scales_in_place(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        with torch.no_grad():
            next(each for each in positional if isinstance(each, Tensor)).mul_(0.5)
        return result

    return injected(subject, scales_in_place)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="function", profile="smoke", blocked_by=("FUN101",), priority=400
)
