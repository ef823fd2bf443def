"""FWD258 argument-strays

Detects: an optional argument of forward, of one number or vector for each row and named after a time, a label, a
length, a condition or the like, by which a row's answer is another than it is with its own alone; and one that changes
later calls which leave it out. Arguments that are named after masks, states, positions, groups and the like are left to
others.
Matters: a batch of several times is answered for the time of its first row, or a call for what an earlier one was
given; with one row, and in a fresh process, nothing shows.
Fix: take each row's own, `t[:, None]` and not `t[0]`; keep what a call is given in variables of that call.

Example:
    # faulty
    t = t.reshape(-1)[0].expand(x.shape[0])
    # correct
    t = t.reshape(-1).expand(x.shape[0])
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.optional_arguments import Given, accepted, giving, is_another
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.numerics.divergence import Divergence, first_divergence
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 19, 3


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    x = sp.input(min(_LENGTH, subject.max_length), _ROWS)
    with torch.no_grad(), unobserved():  # what it raises for values that it does not take is none of its faults
        found = list(accepted(sp, x))
        if not found:
            raise NotApplicableError("its forward takes no optional argument that was found to change its answer")
        tried = [(each, attempt(partial(_fault, subject, x, each))) for each in found]
    faults = [(given, *fault) for given, fault in tried if isinstance(fault, tuple)]
    for given, what, divergence in faults[:1]:
        first = f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""
        yield Finding(
            message=f"the argument {given.name} {what}, at S={x.shape[1]}, B={_ROWS}{first}",
            where=in_subject(divergence.place, sp.module),
            evidence={"argument": given.name, "length": x.shape[1], "operation": divergence.operation},
            repro=command_for(subject, "FWD258"),
        )


def _fault(subject: Subject, x: Tensor, given: Given) -> tuple[str, Divergence] | None:
    """What is wrong with what a call makes of it, and where."""
    return _of_rows(subject, x, given) or _of_later_calls(subject, x, given)


def _of_rows(subject: Subject, x: Tensor, given: Given) -> tuple[str, Divergence] | None:
    if not given.is_by_row:
        return None
    sp = comparable_module(subject)
    for row, kept in ((0, 1), (len(x) - 1, -1)):
        other = given.value.roll(1, 0)
        other[row] = given.value[row]
        plain, changed = (partial(_given, sp, x, given.name, value) for value in (given.value, other))
        if is_another(plain()[row], changed()[row]) and not is_another(*(sp(x)[row] for _ in range(2))):
            return (
                f"of other rows changes the answer for row {row}",
                first_divergence(sp, plain, changed, {len(x): kept}),
            )
    return None


def _of_later_calls(subject: Subject, x: Tensor, given: Given) -> tuple[str, Divergence] | None:
    sp = comparable_module(subject)
    fresh, again = sp(x), sp(x)
    _given(sp, x, given.name, given.value)
    if is_another(fresh, again) or not is_another(fresh, sp(x)):
        return None
    unspoilt = comparable_module(subject)
    return (
        "changes later calls that leave it out",
        first_divergence(sp, lambda: unspoilt(x), lambda: sp(x), {}),
    )


def _given(sp: BuiltModule, x: Tensor, name: str, value: Any) -> Tensor:
    with giving(sp.module, {name: value}):
        return sp(x)


def planted(subject: Subject) -> Subject:
    class Timed(nn.Module):
        """The subject, each row of whose answer is scaled by the first row's time."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)

        def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output if t is None else output * (1 + t.reshape(-1)[0]).to(output)

    return replace(subject, build=lambda _seed: Timed(), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD203", "FWD204", "FWD206", "FWD210")
)
