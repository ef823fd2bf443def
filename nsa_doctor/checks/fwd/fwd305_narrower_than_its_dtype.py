"""FWD305 narrower-than-its-dtype

Detects: a module that takes its values through a narrower type than its own on the way; a note, not a finding.
Matters: its output is no finer than that type, and neither is what any comparison of outputs can show.
Fix: let such a cast widen and never narrow, as in `x.to(torch.promote_types(x.dtype, torch.float32))`.

Example:
    # faulty
    scores = (q.bfloat16() @ k.mT.bfloat16()).to(q.dtype)
    # correct
    scores = q @ k.mT
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Note
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.precision import effective_precision
from nsa_doctor.subject.contract import Subject

_LENGTH = 33


def run(subject: Subject) -> Iterator[Note]:
    built = comparable_module(subject)
    with torch.no_grad():
        precision = effective_precision(built, built.input(min(_LENGTH, subject.max_length)))
    own = getattr(torch, subject.dtype)
    if precision.eps <= torch.finfo(own).eps:  # built in float64, it may well keep to its own float32
        return
    place = precision.place
    if not place.module_class:
        place = replace(place, module_class=type(built.module).__name__)
    narrow = str(precision.dtype)[6:]
    yield Note(
        message=f"values pass through {narrow}, narrower than {subject.dtype}: no comparison is finer than "
        f"{precision.eps:.2g}",
        where=place,
    )


def planted(subject: Subject) -> Subject:
    def narrows(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output.bfloat16().to(output.dtype)

    return replace(subject, forward=narrows)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD101",))
