"""A gradient that is not the derivative, in words, at the operation that goes wrong."""

import torch

from nsa_doctor.checks._shared.gradient import Make, distinct_texts
from nsa_doctor.checks._shared.unlearned import where_it_is_cut
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.gradient_fault import Fault, find_fault, first_wrong_pass
from nsa_doctor.probes.gradients.gradient_place import line_of_earlier_calls
from nsa_doctor.probes.gradients.meant_cuts import attached, meant_cuts, rest_agrees
from nsa_doctor.probes.gradients.truncation import truncation
from nsa_doctor.probes.tensors.widened import Widened
from nsa_doctor.subject.contract import Subject


def wrong_gradient(
    subject: Subject,
    code: str,
    mode: str,
    length: int,
    right: int | None,
    make: Make,
    values: str = "",
    of: str = "the gradient",
    longer: int | None = None,
) -> Finding | Note:
    """The finding of a bench whose gradient differs from its derivative; a note where it does so on purpose.

    `right` is a length at which they agree, `values` the kind of input, in words, and `of` what is differentiated.
    Where nothing can be followed at `length`, as in what is mostly filled up, a `longer` one may show it on purpose.
    """
    found = _described(subject, code, mode, length, right, make, values, of, longer)
    cuts = [] if isinstance(found, Note) else meant_cuts(make(length).built)
    if not cuts:
        return found
    cut = next((each for each in cuts if each.place.short_line == found.where.short_line), None)
    if rest_agrees(make, length, cuts):
        cut = cut or cuts[0]
        return Note(message=f"{found.message}; {cut.reason}", where=cut.place)
    if cut is None:
        return found
    with attached([each.place for each in cuts]):  # what is wrong beside them
        beside = attempt(lambda: _described(subject, code, mode, length, right, make, values, of, longer))
    return found if isinstance(beside, Caught) else beside


def _described(
    subject: Subject,
    code: str,
    mode: str,
    length: int,
    right: int | None,
    make: Make,
    values: str,
    of: str,
    longer: int | None,
) -> Finding | Note:
    bench = make(length)
    fault = _fault(make, length)
    if fault is None and longer is not None and (there := find_fault(make(longer))) is not None and there.reason:
        fault, length = there, longer
    slope, words = (fault.slope, "") if fault is not None else first_wrong_pass(make(length))
    if fault is None:
        place, sought = where_it_is_cut(bench.built, bench.x)
        place = place if sought else line_of_earlier_calls(bench.built, bench.x, place)
    else:
        place, sought = fault.place, f"; it goes wrong in {fault.what}"
    gradient, difference = distinct_texts(slope.autograd, slope.numeric)
    message = f"{of} is {gradient} along a random direction and central differences give {difference} "
    message += f"(to {slope.uncertainty:.1g}) at S={length} in {mode} mode{values}{words}{sought}"
    reason = fault.reason if fault and not values else ""  # on purpose is what ordinary input shows too
    if right and fault and not reason and (cut := truncation(make, length, place)):
        message, reason = f"{message}; {cut}", "truncated on purpose" if cut.is_documented else ""
    if reason:
        return Note(message=f"{message}; {reason}", where=place)
    numbers = {"gradient": slope.autograd, "central difference": slope.numeric}
    return Finding(
        message=message,
        where=place,
        evidence={"length": length, "mode": mode, **numbers, "dtype": bench.built.dtype},
        control=f"they agree at S={right}" if right else "",
        repro=command_for(subject, code),
    )


def _fault(make: Make, length: int) -> Fault | None:
    """Where it goes wrong; of a module that rounds values on its way, first without those casts, each a step itself."""
    bench = make(length)
    if bench.dtype == torch.float64 and bench.rounds():
        with Widened():
            wide = attempt(lambda: find_fault(make(length)))
        if wide is not None and not isinstance(wide, Caught):
            return wide
    return find_fault(bench)
