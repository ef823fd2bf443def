"""FWD307 option-without-effect

Detects: an option with no effect on the output.
Matters: an experiment that turns it compares a model with itself, and a configuration says what is not so.
Fix: follow the option to where it should be read; refuse an option that nothing reads.

Example:
    # faulty
    q, k = self.rotate(q), self.rotate(k)  # whatever config.rope says
    # correct
    if config.rope:
        q, k = self.rotate(q), self.rotate(k)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.lengths import evenly
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.agreement import worst_token
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module, require_finite
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_ROUNDINGS = 8  # the same computation, its sums perhaps in another order


def run(subject: Subject) -> Iterator[Finding]:
    variants = subject.variants
    assert variants is not None
    sp = comparable_module(subject)
    others = {name: _built_beside(subject, module, sp.dtype) for name, module in variants(subject.seed).items()}
    lengths = _lengths(subject)
    for length in lengths:
        if not others:
            return
        x = sp.input(length)
        with torch.no_grad():
            own = require_finite(sp(x), length)
            floor = _ROUNDINGS * torch.finfo(own.dtype).eps * own.abs().flatten(2).amax(-1)
            others = {name: other for name, other in others.items() if worst_token(other(x), own, floor) is None}
    for name, other in others.items():
        yield Finding(
            message=f"option {name} has no effect at S={', '.join(map(str, lengths))}: the output is the same",
            where=definition_place(other.module),
            evidence={"option": name, "length": lengths[-1]},
            repro=command_for(subject, "FWD307"),
        )


def _built_beside(subject: Subject, module: nn.Module, dtype: str) -> BuiltModule:
    return built(replace(subject, build=lambda _seed: module), dtype=dtype)


def _lengths(subject: Subject) -> list[int]:
    """Short ones first: most options show there, and those that do need no longer one."""
    try:
        return rules_of(subject).telling_lengths(subject.max_length)
    except NotApplicableError:
        return evenly(range(1, subject.max_length + 1), 3)


def planted(subject: Subject) -> Subject:
    class IgnoresTheOption(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = subject.build(subject.seed)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = subject.forward(self.layer, x)
            return output

    return replace(
        subject,
        variants=lambda seed: {"temperature": IgnoresTheOption()},
        forward=lambda module, x: module(x),
    )


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("variants",),
    blocked_by=("NAN101", "FWD206"),
    fuzzed=("slots not held",),
)
