"""FWD211 process-changes-output

Detects: an output or a gradient that depends on the process: its number, the time, the seed of Python's hashes, or
`torch.inference_mode()` in place of `torch.no_grad()`.
Matters: ranks of one run, and a run that resumes, compute different models, and nothing measured is measured again.
Fix: look at the line named for a process number, a clock, or the order of a set of strings, and give the function what
it needs as an argument or a seed.

Example:
    # faulty
    for name in {"compressed", "selected", "sliding"}:  # another order in each process
        gates.append(self.gate[name](x))
    # correct
    for name in ("compressed", "selected", "sliding"):
        gates.append(self.gate[name](x))
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.checks._shared.elsewhere import (
    OF_GRADIENT,
    Known,
    in_an_interpreter,
    in_forks,
    in_this_process,
    known_of,
)
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.call_history import Call, CallHistory, Outcome
from nsa_doctor.probes.model.call_schedule import evaluated, trained
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.model.second_interpreter import can_be_named
from nsa_doctor.probes.model.state import can_be_forked
from nsa_doctor.probes.numerics.earlier_calls import differs_by
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.subject.contract import Subject

_LENGTH = 17


def run(subject: Subject) -> Iterator[Finding]:
    calls = [call for call in (evaluated(subject), trained(subject)) if call.mode in subject.modes]
    is_copied, is_named = can_be_forked(), can_be_named(subject) and subject.profile != "smoke"
    if not calls:
        raise NotApplicableError("it runs neither in eval() without gradients nor in training mode")
    sp = comparable_module(subject)
    judge = differs_by(finest_precision(sp, sp.input(min(_LENGTH, subject.max_length))).eps)
    history = CallHistory(subject, dtype=sp.dtype)
    start = ModuleState(history.built.module)
    outcomes: dict[Call, Outcome] = {}
    for call in calls:
        if (outcome := history.step(call)) is not None:
            outcomes[call] = outcome
        start.restore()  # as before each call there: what one leaves behind is no matter of the process
    found: dict[str, Any] = {}
    if outcomes:
        look = in_forks if is_copied else in_this_process
        found = look(history, outcomes, judge, Known())
        if found.get("symptom") in ("output", *OF_GRADIENT):  # once more, to find the place
            known = known_of(history, Call(**found["call"]), found["symptom"])
            start.restore()
            found = look(history, outcomes, judge, known) or found
    if not found and is_named:
        found = in_an_interpreter(subject, sp.dtype, calls, judge)
    if found:
        yield _finding(subject, found)


def _finding(subject: Subject, found: dict[str, Any]) -> Finding:
    call, at = Call(**found["call"]), f"; first in {found['operation']}" if found["operation"] else ""
    message = f"{call} gives another result {found['way']}: {found['words']}{at}"
    if found["symptom"] == "ends":
        message = f"calls that return here do not {found['way']}: {found['words']}"
    return Finding(
        message=message,
        where=Place(**found["place"]),
        evidence={"way": found["way"], "symptom": found["symptom"], "length": call.length, "batch": call.batch},
        repro=command_for(subject, "FWD211"),
    )


def planted(subject: Subject) -> Subject:
    def scaled_by_the_process(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output * (1.0 + os.getpid() % 97 / 97)

    return replace(subject, forward=scaled_by_the_process)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    blocked_by=("FWD101", "FWD103", "FWD206", "FWD210", "NAN101"),
    explained_by=("FWD206", "FWD210"),
    priority=406,
)
