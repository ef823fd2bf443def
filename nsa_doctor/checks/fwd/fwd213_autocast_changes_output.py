"""FWD213 autocast-changes-output

Detects: an output or a gradient under autocast to bfloat16 that is further from float32 than its roundings explain,
measured by the same operations rounded without autocast; or one that is not finite, or raises, under autocast alone.
Matters: models of float32 are trained under autocast, and a branch for it is not what any test without it runs.
Fix: look at the module named for a branch on autocast or on a dtype, and for a `custom_fwd` that casts.

Example:
    # faulty
    if q.dtype == torch.bfloat16:
        return fused(q, k, v)  # whose scale is another
    # correct
    return fused(q, k, v, scale=q.shape[-1] ** -0.5)
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, SubjectFailedError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.lines_apart import at_line_apart
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.autocast_fault import AutocastFault, autocast_fault
from nsa_doctor.probes.numerics.imitated_autocast import autocast_pass, imitated_pass, plain_pass
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 67, 3
_ANOTHER_SEED = 31337


def run(subject: Subject) -> Iterator[Finding | Note]:
    if subject.dtype != "float32":
        raise NotApplicableError(f"autocast leaves a model of {subject.dtype} alone")
    sp = built(subject)
    try:
        found = _fault(sp)
        other = found and _fault(built(replace(subject, seed=subject.seed + _ANOTHER_SEED)))
    except SubjectFailedError as failure:
        yield _raised(subject, failure)
        return
    if found is not None and other is not None:
        yield Finding(
            message=f"under autocast to bfloat16, {found.words}, at S={_length(subject)}",
            where=_place(sp, found.path),
            evidence={"length": _length(subject), "error": found.error, "floor": found.budget},
            repro=command_for(subject, "FWD213"),
        )


def _fault(sp: BuiltModule) -> AutocastFault | None:
    """What autocast changes by more than rounding; raises what it raises under autocast alone."""
    x = sp.input(_length(sp.subject), _ROWS)
    plain = plain_pass(sp, x)
    with unobserved():  # what is seen under autocast is reported here
        try:
            imitated = imitated_pass(sp, x)
        except SubjectFailedError as failure:
            raise NotApplicableError("operations of it refuse what autocast gives others") from failure
        return autocast_fault(plain, imitated, autocast_pass(sp, x))


def _place(sp: BuiltModule, path: str) -> Place:
    """The module, at the line that runs under autocast alone where there is one."""
    x, place = sp.input(_length(sp.subject), _ROWS), definition_place(sp.module.get_submodule(path))
    with unobserved():
        return at_line_apart(
            sp.subject, replace(place, module=path), partial(autocast_pass, sp, x), partial(plain_pass, sp, x)
        )


def _raised(subject: Subject, failure: SubjectFailedError) -> Finding | Note:
    trouble = trouble_of(failure, subject.packages)
    message = f"under autocast to bfloat16 the subject raises {trouble.message}, at S={_length(subject)}"
    if "type" in str(failure.caught.error):  # two dtypes meet in one operation: it is not made for autocast
        return Note(message=message, where=trouble.place)
    return Finding(
        message=message,
        where=trouble.place,
        evidence={"length": _length(subject), "kind": "raised"},
        repro=command_for(subject, "FWD213"),
    )


def _length(subject: Subject) -> int:
    return min(_LENGTH, subject.max_length)


def planted(subject: Subject) -> Subject:
    def forgets_a_scale(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        if torch.is_autocast_enabled(x.device.type):
            output = output * 0.5
        return output

    return replace(subject, forward=forgets_a_scale)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD206", "NAN101", "NAN102"), priority=427)
