"""DEC118 choice-leaves-a-field

Detects: a method of an object that the subject decodes with, which takes an index of rows and chooses them of all but
    one of the tensors that the object holds for each row (`state.select(parents)`, `cache.reorder(beams)`).
Matters: a beam goes on with the flag, the length or the values of another; it shows only where rows differ in that
    field, as where one has ended and another has not.
Fix: index every field that has a value for each row by the same rows.

Example:
    # faulty
    return State(self.stack[index], self.depth[index], self.done)
    # correct
    return State(self.stack[index], self.depth[index], self.done[index])
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.fields_of_rows import kinds_with_choosers, left_fields
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    kinds = kinds_with_choosers(built(subject))
    if not kinds:
        raise NotApplicableError("no class of its own has a method that chooses rows")
    with unobserved():
        found, num_asked = left_fields(subject, kinds)
    if not num_asked:
        raise NotApplicableError("no object is seen that holds two tensors or more for each row")
    for each in found:
        others = ", ".join(each.others[:3])
        yield Finding(
            message=f"{each.kind}.{each.method} chooses rows of {others} and leaves {each.field} as it was, which has "
            "a value for each row too",
            where=each.place,
            evidence={"class": each.kind, "method": each.method, "field": each.field, "chosen": len(each.others)},
            repro=command_for(subject, "DEC118"),
        )


def planted(subject: Subject) -> Subject:
    class Kept(nn.Module):
        """The newest rows, and sums of them."""

        def __init__(self) -> None:
            super().__init__()
            self.rows, self.sums = torch.zeros(()), torch.zeros(())

        def forward(self, x: Tensor) -> None:
            self.rows, self.sums = x.detach(), x.detach().cumsum(1)

        def reorder(self, beams: Tensor) -> None:
            self.rows = self.rows[beams]

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.kept = Kept()
        return module

    def forward(module: Any, x: Tensor) -> Any:
        module.kept(x)
        return subject.forward(module, x)

    return replace(subject, build=build, forward=forward, prefill=None, step=None)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD206"))
