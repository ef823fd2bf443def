"""FUN402 gradient-depends-on-asking

Detects: an input that gets no gradient, and gradients that change or raise when only some of the inputs need one.
Matters: frozen keys or a tuned prompt ask for some gradients alone; a missing one trains nothing.
Fix: look at ctx.needs_input_grad for each input by itself, and detach nothing on the way.

Example:
    # faulty
    out = attend(q, k.detach(), v)
    # correct
    out = attend(q, k, v)
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, differs, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.calling import Asking, ask
from nsa_doctor.probes.functions.measured import measured
from nsa_doctor.subject.function import FunctionSubject

_LENGTH = 40
_SOME = (("q",), ("k",), ("v",), ("q", "k"), ("q", "v"), ("k", "v"), ("sinks",))


def run(subject: FunctionSubject) -> Iterator[Finding]:
    if not subject.has_gradients:
        raise NotApplicableError(subject.gradient_refusal or "it is for inference alone")
    base = measured(subject, shapes.at_length(subject, _LENGTH))
    for shown in (base.answer,):
        if shown.failure is None and shown.absent:
            names = ", ".join(shown.absent)
            hint = (
                "; if it is for inference alone, say forward_only"
                if len(shown.absent) == len(base.problem.inputs)
                else ""
            )
            message = f"{subject.name} gives no gradient to {names} {conditions(subject, base.problem)}{hint}"
            evidence = {"tensor": f"d{shown.absent[0]}", "target": f"d{shown.absent[0]}"}
            yield found(subject, "FUN402", message, base.problem, shown, evidence, is_backward=True)
            return
    for wants in _SOME:
        if not set(wants) <= set(base.problem.inputs):
            continue
        answer, only = ask(subject, base.problem, Asking(wants=wants)), " and ".join(wants)
        is_served = base.answer.failure is None
        if is_served and (answer.failure is not None or answer.absent):
            what = f"raises {answer.failure.sentence}" if answer.failure else "gives no gradient"
            message = f"{subject.name} {what} when {only} alone needs one {conditions(subject, base.problem)}"
            evidence = {"tensor": f"d{wants[0]}", "target": f"d{wants[0]}"}
            yield found(subject, "FUN402", message, base.problem, answer, evidence, is_backward=True)
            return
        excess = base.first_excess(answer.tensors)
        if excess is not None and base.first_excess(base.answer.tensors) is None:
            control = f"right when all inputs need a gradient; here {only} alone"
            yield differs(subject, "FUN402", base.problem, excess, answer, control)
            return


def planted(subject: FunctionSubject) -> FunctionSubject:
    def forgets_one(*positional: Any, **keywords: Any) -> Any:
        index = [i for i, each in enumerate(positional) if isinstance(each, Tensor) and each.is_floating_point()][1]
        return subject.function(*positional[:index], positional[index].detach(), *positional[index + 1 :], **keywords)

    return injected(subject, forgets_one)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    priority=505,
)
