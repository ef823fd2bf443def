"""FWD213 autocast-changes-output

Detects: an output or a gradient under autocast to bfloat16 or float16 that is further from float32 than its roundings
explain, measured by the same operations rounded without autocast; or one that is not finite, or raises, under autocast
alone.
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
from itertools import islice

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, SubjectFailedError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.torch_errors import TorchError, error_kind
from nsa_doctor.probes.hooks.lines_apart import at_line_apart
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.imitated_autocast import autocast_pass, imitated_pass
from nsa_doctor.probes.numerics.rounded_pass import passed
from nsa_doctor.probes.numerics.rounding_fault import RoundingFault, rounding_fault
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS, _ANOTHER_SEED = 67, 3, 31337
_HALVES = ("bfloat16", "float16")


def run(subject: Subject) -> Iterator[Finding | Note]:
    if subject.dtype != "float32":
        raise NotApplicableError(f"autocast leaves a model of {subject.dtype} alone")
    yield from islice((found for half in _HALVES if (found := _examine(subject, half)) is not None), 1)


def _examine(subject: Subject, half: str) -> Finding | Note | None:
    sp = built(subject)
    try:
        found = _fault(sp, half)
        other = found and _fault(built(replace(subject, seed=subject.seed + _ANOTHER_SEED)), half)
    except SubjectFailedError as failure:
        return _raised(subject, failure, half)
    if found is None or other is None:
        return None
    x, place = sp.input(_length(subject), _ROWS), definition_place(part_at(sp.module, found.path))
    ways = partial(autocast_pass, sp, x, getattr(torch, half)), partial(passed, sp, x)
    with unobserved():  # the line that runs under autocast alone, where there is one
        place = at_line_apart(subject, replace(place, module=found.path), *ways)
    return Finding(
        message=f"under autocast to {half}, {found.words(half)}, at S={_length(subject)}",
        where=place,
        evidence={"length": _length(subject), "dtype": half, "error": found.error, "floor": found.budget},
        repro=command_for(subject, "FWD213"),
    )


def _fault(sp: BuiltModule, half: str) -> RoundingFault | None:
    """What autocast changes by more than rounding; raises what it raises under autocast alone."""
    x, dtype = sp.input(_length(sp.subject), _ROWS), getattr(torch, half)
    plain = passed(sp, x)
    with unobserved():  # what is seen under autocast is reported here
        try:
            imitated = imitated_pass(sp, x, dtype)
        except SubjectFailedError as failure:
            autocast_pass(sp, x, dtype)  # what it raises too is reported
            raise NotApplicableError("operations of it refuse what autocast gives others") from failure
        return rounding_fault(plain, imitated, autocast_pass(sp, x, dtype))


def _raised(subject: Subject, failure: SubjectFailedError, half: str) -> Finding | Note:
    trouble = trouble_of(failure, subject.packages)
    message = f"under autocast to {half} the subject raises {trouble.message}, at S={_length(subject)}"
    error = failure.caught.error
    is_unserved = half == "float16" and isinstance(error, RuntimeError)  # a CPU has no kernels for some of it
    are_two = not isinstance(error, TypeError) and "type" in str(error)  # which meet in one operation
    if is_unserved or are_two or error_kind(str(error)) is TorchError.NO_KERNEL:
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
