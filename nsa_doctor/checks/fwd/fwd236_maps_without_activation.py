"""FWD236 maps-without-activation

Detects: a linear layer wider than what it is given and wider than what follows it, whose output another linear layer of
the same module is given as it is, and nothing else reads; three layers or more in such a row, none of them narrower
than the narrower of its ends.
Matters: two linear maps in a row are one of a lower rank: the width in between costs its parameters and its time, and a
feed-forward layer without its activation leaves attention alone to be nonlinear.
Fix: apply the activation between the two; where a linear layer is meant, one is enough.

Example:
    # faulty
    y = self.down(self.dropout(self.up(x)))
    # correct
    y = self.down(self.dropout(F.gelu(self.up(x))))
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import counted
from nsa_doctor.probes.gradients.maps_in_a_row import InARow, maps_in_a_row
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

_LENGTHS = 19, 67


def run(subject: Subject) -> Iterator[Finding]:
    sp = built(subject)
    if not any(isinstance(part, nn.Linear) for part in sp.module.modules()):
        raise NotApplicableError("it has no linear layer")
    found = list(_pairs(sp, _LENGTHS[0]))
    again = {(each.first, each.second) for each in _pairs(sp, _LENGTHS[1])} if found else set()
    found = [each for each in found if (each.first, each.second) in again]
    for each in found[:1]:
        kind = "more pair" if all(row.num_layers == 2 for row in found) else "more row"
        others = f"; {counted(len(found) - 1, kind)} so" if len(found) > 1 else ""
        yield Finding(
            message=f"{_words(each)}{others}",
            where=in_subject(each.place, sp.module),
            evidence={"first": each.first, "second": each.second, "width": each.width},
            repro=command_for(subject, "FWD236"),
        )


def _words(row: InARow) -> str:
    least = min(row.given, row.made)
    if row.num_layers > 2:
        return (
            f"{row.num_layers} linear layers, {row.first} to {row.second}, are each given what the one before makes, "
            f"as it is: they are one map of {least} channels"
        )
    return (
        f"{row.first} widens {row.given} channels to {row.width}, and {row.second} is given these as they are, for "
        f"{row.made}: the two are one map of {least} channels"
    )


def _pairs(sp: BuiltModule, length: int) -> Iterator[InARow]:
    return maps_in_a_row(sp, sp.input(min(length, sp.subject.max_length), batch=2))


def planted(subject: Subject) -> Subject:
    class Beside(nn.Module):
        """The subject, and a feed-forward layer without an activation."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.up, self.down = subject.build(subject.seed), nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            tokens = torch.linspace(-1, 1, 8).to(self.up.weight).expand(x.shape[1], 8)
            return output + 0 * self.down(self.up(tokens)).sum().to(output.dtype)

    return replace(subject, build=lambda _seed: Beside(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",))
