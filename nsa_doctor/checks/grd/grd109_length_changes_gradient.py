"""GRD109 length-changes-gradient

Detects: a gradient of the first tokens' output that depends on how many tokens follow them, at lengths that no
comparison with central differences has time for.
Matters: lengths vary in training; at some of them a part of the model learns nothing, or twice.
Fix: look at the line named for what is done at some lengths alone: a tail, a padding, a branch on a multiple.

Example:
    # faulty
    if x.shape[1] % 64:
        tail = tail.detach()
    # correct
    tail = pad(tail, 64 - x.shape[1] % 64)
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.by_length import GradientsByLength, LengthDeparture
from nsa_doctor.probes.gradients.derivative import has_steps
from nsa_doctor.probes.gradients.derivative_probe import DerivativeProbe
from nsa_doctor.probes.gradients.gradient_fault import find_fault
from nsa_doctor.probes.hooks.lines_apart import at_line_apart, owned
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.training import forward_backward
from nsa_doctor.subject.contract import Subject

_ANOTHER_SEED = 31337


def run(subject: Subject) -> Iterator[Finding]:
    if "eval" not in subject.modes:
        raise NotApplicableError("it has no gradients in eval()")
    sp = comparable_module(subject)
    by_length = GradientsByLength(sp)
    for length, rows in by_length.lengths():
        found = by_length.departure(length, rows)
        other = replace(subject, seed=subject.seed + _ANOTHER_SEED)
        if found is not None and GradientsByLength(comparable_module(other)).departure(length, rows) is not None:
            yield _finding(subject, sp, by_length, found)
            return


def _finding(subject: Subject, sp: BuiltModule, by_length: GradientsByLength, found: LengthDeparture) -> Finding:
    place, what = definition_place(sp.module), ""
    if has_steps(getattr(torch, sp.dtype)):
        fault = find_fault(DerivativeProbe(sp, by_length.x[:, : found.length]))
        place, what = (place, "") if fault is None else (fault.place, f"; first in {fault.what}")
    if not what:
        xs = (by_length.x[:, :length] for length in (found.length, found.reference))
        with unobserved():
            place = owned(
                subject, sp.module, at_line_apart(subject, place, *(partial(forward_backward, sp, x) for x in xs))
            )
    name = found.name if found.name.startswith("the ") else f"the gradient of {found.name}"
    return Finding(
        message=f"{name} for the first {found.first} tokens at S={found.length} differs from that at "
        f"S={found.reference} by {found.error:.2g} (tolerance {found.bound:.1g}){what}",
        where=place,
        evidence={"length": found.length, "first": found.first, "error": found.error, "floor": found.bound},
        control=f"the gradient at S={found.reference} is that of central differences",
        repro=command_for(subject, "GRD109"),
    )


def planted(subject: Subject) -> Subject:
    def loses_half_at_some_lengths(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return (output + output.detach()) / 2 if x.shape[1] % 8 == 3 else output

    return replace(subject, forward=loses_half_at_some_lengths)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD201", "FWD202", "FWD206", "NAN101"),
    explained_by=("FWD201", "FWD202", "GRD101", "GRD104"),
    priority=517,
    unless=("bidirectional", "stochastic"),
)
