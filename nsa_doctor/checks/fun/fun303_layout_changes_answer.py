"""FUN303 layout-changes-answer

Detects: an output or a gradient that changes when queries, keys, values or the incoming gradient lie differently in
memory: rows of a wider tensor, transposed, at an offset, expanded with stride 0.
Matters: a view of a fused projection, or the gradient of a sum, is such a tensor; a kernel that ignores strides reads
other numbers and raises nothing.
Fix: pass the strides to the kernel, or call .contiguous() on every input and on the incoming gradient.

Example:
    # faulty
    kernel[grid](dout, dout.shape[-1])  # the stride of a row is taken to be its length
    # correct
    kernel[grid](dout, dout.stride(-2))
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import differs, found, injected, layout_words
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.bounds import Excess
from nsa_doctor.probes.functions.calling import Arrange, Asking, ask
from nsa_doctor.probes.functions.measured import Measured, bounds_of, measured
from nsa_doctor.probes.functions.memory_layouts import LAYOUTS, arranged
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.probes.functions.shared_memory import in_shared_memory
from nsa_doctor.subject.function import FunctionSubject

_LENGTH = 50
_TENSORS = ("q", "k", "v", "dout")


def run(subject: FunctionSubject) -> Iterator[Finding | Note]:
    shape = shapes.at_length(subject, _LENGTH)
    plain = measured(subject, shape)
    tried: list[tuple[str, Measured, Arrange]] = list(in_shared_memory(subject, plain.problem))
    for layout in LAYOUTS:
        tried += [(f"{layout} ({name})", plain, arranged(layout, (name,))) for name in _TENSORS]
    refusals: dict[str, str] = {}
    reported: set[str] = set()
    for layout, base, arrange in tried:
        if base.first_excess(base.answer.tensors) is not None or "out" not in base.answer.tensors:
            continue
        problem = replace(base.problem, about=layout)
        forward = ask(subject, problem, Asking(arrange=arrange, wants=()))  # its backward may lose the device
        is_wrong = base.first_excess(forward.tensors) is not None
        answer = forward if is_wrong else ask(subject, problem, Asking(arrange=arrange))
        if answer.failure is not None and answer.failure.is_refusal:
            refusals.setdefault(answer.failure.sentence, layout)
        elif answer.failure is not None and answer.failure.sentence not in reported:
            reported.add(answer.failure.sentence)
            message = f"{subject.name} raises {answer.failure.sentence} in {answer.failure.phase} with {layout}"
            yield found(subject, "FUN303", message, base.problem, answer, {"kind": "raised"})
        excess = base.first_excess(answer.tensors)
        if excess is not None and excess.tensor not in reported:
            reported.add(excess.tensor)
            control = "right with contiguous tensors" + _where_first(subject, _LENGTH + len(reported), arrange, excess)
            finding = differs(subject, "FUN303", base.problem, excess, answer, control)
            yield layout_words(finding, layout)
    for sentence, layout in refusals.items():
        yield Note(message=f"not served: {layout}: {sentence}")


def _where_first(subject: FunctionSubject, length: int, arrange: Arrange, excess: Excess) -> str:
    """What is said where the first call at some length is right in that layout, and a contiguous one behind it wrong.

    So it is where what was made for the layout of one call, a plan or strides, is kept and taken for another's.
    """
    if not subject.has_truth:
        return ""
    problem = problem_of(subject, shapes.of_length(subject, shapes.base(subject), length, length))
    answer = ask(subject, problem, Asking(arrange=arrange))
    first = Measured(problem=problem, answer=answer, bounds=bounds_of(subject, problem, answer))
    if excess.tensor not in answer.tensors or first.excess(excess.tensor) is not None:
        return ""
    behind = ask(subject, problem)
    if behind.failure is None and first.first_excess(behind.tensors) is None:
        return ""  # contiguous tensors are right behind it as well: nothing of that call is kept
    return f", and at S={length} where no other layout was called before: one call's layout is kept for others"


def planted(subject: FunctionSubject) -> FunctionSubject:
    def takes_them_as_they_lie(*positional: Any, **keywords: Any) -> Any:
        taken = [
            torch.as_strided(each, each.shape, each.contiguous().stride())
            if isinstance(each, Tensor) and each.ndim > 2
            else each
            for each in positional
        ]
        return subject.function(*taken, **keywords)

    return injected(subject, takes_them_as_they_lie)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="function", blocked_by=("FUN101", "FUN102"), priority=530)
