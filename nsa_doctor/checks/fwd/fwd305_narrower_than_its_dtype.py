"""FWD305 narrower-than-its-dtype

Detects: a sum over values that is kept in a narrower type than they have, or than the module has, and a softmax of
scores that are cast to half precision for it. Another cast, as before a product in half precision, is a note and no
finding.
Matters: a sum loses what is small beside it, the more of it the more it adds up; and no output is finer than that type.
Fix: add up in the type of what is added, or a wider one, and let a cast widen and never narrow, as in
`x.to(torch.promote_types(x.dtype, torch.float32))`.

Example:
    # faulty
    mean = x.sum(1, dtype=torch.bfloat16) / x.shape[1]
    # correct
    mean = x.sum(1) / x.shape[1]
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.precision import effective_precision
from nsa_doctor.subject.contract import Subject

_LENGTHS = (33, 260)  # what is carried from one part of a sequence to the next shows in the longer one


def run(subject: Subject) -> Iterator[Finding | Note]:
    built = comparable_module(subject)
    own = torch.finfo(getattr(torch, subject.dtype)).eps
    with torch.no_grad():
        for length in _LENGTHS:
            precision = effective_precision(built, built.input(min(length, subject.max_length)))
            if precision.eps > own:  # built in float64, it may well keep to its own float32
                break
        else:
            return
    place = precision.place
    if not place.module_class:
        place = replace(place, module_class=type(built.module).__name__)
    narrow = str(precision.dtype)[6:]
    narrower = f"{narrow}, narrower than {subject.dtype}"
    message = ""
    if precision.is_of_a_sum:
        message = f"values are added up in {narrower}: the sum is no finer than {precision.eps:.2g} of itself"
    elif precision.is_of_a_softmax:
        message = (
            f"a softmax is taken of scores cast to {narrower}: a weight is no finer than {precision.eps:.2g} of itself"
        )
    if message:
        yield Finding(
            message=f"{message}, and the output depends on it",
            where=place,
            evidence={"operation": precision.operation, "dtype": narrow, "own dtype": subject.dtype},
            repro=command_for(subject, "FWD305"),
        )
        return
    yield Note(
        message=f"values pass through {narrower}: no comparison is finer than {precision.eps:.2g}",
        where=place,
    )


def planted(subject: Subject) -> Subject:
    def adds_up_in_half(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output + output.cumsum(1, dtype=torch.bfloat16)

    return replace(subject, forward=adds_up_in_half)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD101",), explained_by=("FWD304",))
