"""FWD305 float64-computed-in-float32

Detects: a module built in float64 that takes its values through a narrower type on the way; a note, not a finding.
Matters: float64 then proves less than it seems to: comparisons with it are only as precise as the narrower type.
Fix: let such a cast widen and never narrow, as in `x.to(torch.promote_types(x.dtype, torch.float32))`.

Example:
    # faulty
    x = x.float()  # narrows float64
    # correct
    x = x.to(torch.promote_types(x.dtype, torch.float32))
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Note
from nsa_doctor.probes.model.built_module import comparable_specimen
from nsa_doctor.probes.numerics.precision import effective_precision
from nsa_doctor.subject.contract import Subject

_LENGTH = 33


def run(subject: Subject) -> Iterator[Note]:
    built = comparable_specimen(subject)
    if built.dtype != "float64":
        raise NotApplicableError("it does not compute in float64")
    precision = effective_precision(built, min(_LENGTH, subject.max_length))
    if precision.dtype != torch.float64:
        place = precision.place
        if not place.module_class:
            place = replace(place, module_class=type(built.module).__name__)
        yield Note(message=f"float64 passes through {str(precision.dtype)[6:]}", where=place)


def planted(subject: Subject) -> Subject:
    def narrows(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output.float().to(output.dtype)

    return replace(subject, forward=narrows)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD101",))
