"""FWD265 none-is-used

Detects: a name or an attribute that a method of the module, run or not, calls, indexes or takes an attribute of on the
side of a condition on which it is None: `if self.gate is None: x = self.gate(x)`.
Matters: the condition is turned round: where it holds the call raises, and where it does not, the part that was asked
for is left out, silently.
Fix: `is not None` for `is None`; see too that what the branch computes is read.

Example:
    # faulty
    if self.highway is None:
        x = self.highway(x)
    # correct
    if self.highway is not None:
        x = self.highway(x)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import MOST_FINDINGS
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.hooks.used_where_none import used_where_none
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    module = subject.build(subject.seed)
    for found in list(used_where_none(module))[:MOST_FINDINGS]:
        yield Finding(
            message=f"{found.name} is {found.use} on the side of `{found.condition}` on which it is None: that raises, "
            "or is never come to",
            where=in_subject(found.place, module),
            evidence={"name": found.name},
            repro=command_for(subject, "FWD265"),
        )


def planted(subject: Subject) -> Subject:
    class Turned(nn.Module):
        """A part that is applied where there is none."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.more: Any = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            if self.more is None:
                x = self.more(x)
            return subject.forward(self.inner, x)

    return replace(subject, build=lambda _seed: Turned(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, priority=448)
