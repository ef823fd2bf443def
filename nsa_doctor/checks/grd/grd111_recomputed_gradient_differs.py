"""GRD111 recomputed-gradient-differs

Detects: activation checkpointing that changes gradients: backward computes again something else than forward did.
Matters: it is on for long inputs and large models alone, where nobody compares gradients with those of a plain pass.
Fix: hand the function all it needs as arguments: a closure over a loop's variable holds the last one by then; keep
`preserve_rng_state`, and change no attribute that the function reads.

Example:
    # faulty
    for block in self.blocks:
        x = checkpoint(lambda h: block(h), x, use_reentrant=False)  # backward runs the last block each time
    # correct
    for block in self.blocks:
        x = checkpoint(block, x, use_reentrant=False)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.recomputed import Departure, Recomputation
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTHS = {"smoke": (37,), "quick": (37, 131, 260), "full": (37, 131, 260, 521)}


def run(subject: Subject) -> Iterator[Finding]:
    if "train" not in subject.modes:
        raise NotApplicableError("it does not run in training mode")
    sp = comparable_module(subject, mode="train")
    if not any(parameter.requires_grad for parameter in sp.module.parameters()):
        raise NotApplicableError("it has no parameter that is trained")
    for length in sorted({min(length, subject.max_length) for length in _LENGTHS[subject.profile]}):
        recomputation = Recomputation(sp, length, rows=2)
        calls = recomputation.calls()
        if calls and (found := recomputation.departure(calls)) is not None:
            yield _finding(subject, sp, length, found)
            return


def _finding(subject: Subject, sp: BuiltModule, length: int, found: Departure) -> Finding:
    place = found.place
    if not place.module_class:
        place = replace(place, module_class=type(sp.module).__name__)
    return Finding(
        message=f"activation checkpointing gives {found.words} at S={length} in train mode, against the same pass with "
        "everything kept: what it computes again is not what forward computed",
        where=place,
        evidence={"length": length, "num_parameters": found.num_parameters, "dtype": sp.dtype},
        repro=command_for(subject, "GRD111"),
    )


def planted(subject: Subject) -> Subject:
    def recomputes_with_another_scale(module: nn.Module, x: Tensor) -> Tensor:
        scale = [1.0]
        given = subject.forward(module, x)
        output: Tensor = checkpoint(lambda y: y * y.new_full((), scale[0]), given, use_reentrant=False)
        scale[0] = 2.0 if torch.is_grad_enabled() else 1.0
        return output

    return replace(subject, forward=recomputes_with_another_scale)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "NAN101", "NAN102", "GRD104"),
    priority=498,
)
