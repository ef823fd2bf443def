"""A module converted to half precision beside itself in float64 with the same values: what GRD110 compares."""

from dataclasses import replace
from functools import partial

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.lines_apart import in_its_file
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.imitated_half import half_passes
from nsa_doctor.probes.numerics.rounded_pass import passed
from nsa_doctor.probes.numerics.rounding_budget import Twins, twins
from nsa_doctor.probes.numerics.rounding_fault import RoundingFault, is_routed_apart, rounding_fault
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 67, 2
_FEWER = (16, 4)  # tokens of which fewer lie near to another choice of experts


def length_of(subject: Subject) -> int:
    """How many tokens are compared."""
    return min(_LENGTH, subject.max_length)


def converted(subject: Subject, half: str) -> Twins | Note | None:
    """The subject in that type and in float64 with the same values; None where it does not run so, and it need not.

    A note of where it writes a number that the type cannot hold, as a mask of -1e9 in float16.
    """
    try:
        with unobserved():
            pair = twins(subject, half)
            pair.low(pair.low.input(length_of(subject)))
    except SubjectFailedError as failure:
        trouble = trouble_of(failure, subject.packages)
        is_beyond = "without overflow" in str(failure.caught.error)
        return (
            Note(message=f"converted to {half} it raises {trouble.message}", where=trouble.place) if is_beyond else None
        )
    return pair


def conversion_fault(pair: Twins) -> RoundingFault | Note | None:
    """What differs by more than the same operations rounded; a note where those leave the range of the type."""
    most = length_of(pair.wide.subject)
    for length in (most, *(fewer for fewer in _FEWER if fewer < most)):
        x = pair.wide.input(length, _ROWS)
        x = x.to(pair.dtype).double() if x.is_floating_point() else x
        with unobserved():
            plain, imitated, found = half_passes(pair, x)
        if not is_routed_apart(plain, imitated, found):
            break
    half = str(pair.dtype)[6:]
    if all(bool(isfinite(each).all()) for each in (imitated.output, *imitated.gradients.values())):
        fault = rounding_fault(plain, imitated, found, partial(_is_torchs, pair))
        if fault is None or not fault.is_torchs:
            return fault
        words = f"converted to {half}, {fault.words(half)}, though torch's own layer is handed the right gradient"
        return Note(message=words, where=definition_place(pair.low.module))
    lost = [each for each in found.gradients.values() if not bool(isfinite(each).all())]
    what = f"converted to {half}, {len(lost)} of its {len(found.gradients)} gradients are not finite"
    if not lost:
        what = f"each operation rounded to {half}, its values leave that type's range, as they do not else"
    message = f"{what} at S={x.shape[1]}: nothing is said of its gradients"
    return Note(message=message, where=definition_place(pair.low.module))


def conversion_place(pair: Twins, path: str) -> Place:
    """The innermost module there that is not torch's, at the line of its file that half precision alone runs."""
    sp = pair.low
    while path and _is_torchs(pair, path):
        path = path.rpartition(".")[0]
    wide = pair.wide.input(length_of(sp.subject), _ROWS)
    low = wide.to(pair.dtype) if wide.is_floating_point() else wide
    place = replace(definition_place(part_at(sp.module, path)), module=path)
    with unobserved():
        return in_its_file(sp.subject, place, partial(passed, sp, low), partial(passed, pair.wide, wide))


def _is_torchs(pair: Twins, path: str) -> bool:
    return type(part_at(pair.low.module, path)).__module__.startswith("torch.")
