"""GRD232 start-overwritten

Detects: initial values that a line chose for a parameter (zeros of a projection, the bias of a gate, a table of sines),
the same for every seed, and that a later line for all parameters replaces before the module is there:
`self.apply(self._init_weights)` behind it, in the same constructor or in that of the module around it.
Matters: what was chosen never counts. A gate that was to begin open begins half closed, a residual branch that was to
begin at nothing does not, a table is noise; training starts from elsewhere than the code says.
Fix: give the chosen values last, or leave those parameters out of what is done to all.

Example:
    # faulty
    nn.init.constant_(self.gate.bias, 2.0)
    self.apply(self._init_weights)  # zeros for every bias
    # correct
    self.apply(self._init_weights)
    nn.init.constant_(self.gate.bias, 2.0)
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.frames import Line
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.lost_starts import lost_starts
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    for lost in lost_starts(subject):
        yield Finding(
            message=(
                f"{lost.name} is given {lost.was} at {_at(lost.given)}, and then {lost.now} at {_at(lost.over)}, which "
                f"writes to {lost.num_parameters} parameters: what was chosen for this one never counts"
            ),
            where=lost.place,
            evidence={"parameter": lost.name, "given": lost.was, "begins": lost.now},
            repro=command_for(subject, "GRD232"),
        )


def _at(line: Line) -> str:
    return f"{Path(line.file).name}:{line.line}"


def planted(subject: Subject) -> Subject:
    class Scaled(nn.Module):
        """The subject, and a part behind it that was to begin at nothing."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.one, self.other, self.last = inner, nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)
            nn.init.zeros_(self.last.weight)
            for part in (self.one, self.other, self.last):
                self._begin(part)

        def _begin(self, part: nn.Linear) -> None:
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            first = torch.tanh(output[..., :1].float()).expand(*output.shape[:-1], 2)
            return output + self.last(self.other(self.one(first))).to(output)

    return replace(subject, build=lambda seed: Scaled(subject.build(seed)), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",))
