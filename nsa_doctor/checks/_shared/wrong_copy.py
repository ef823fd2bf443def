"""What a copy of a module gives otherwise than the module: it raises, its output, its gradients."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from nsa_doctor.checks._shared.compared import went_wrong
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import joined
from nsa_doctor.probes.gradients.askings import Gradients, described, differing, gradients
from nsa_doctor.probes.gradients.gradient_place import gradient_place
from nsa_doctor.probes.hooks.lines_apart import at_own_line
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.copies import unsaved
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.compare import Baseline, Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS, _MOST_NAMED = 19, 3, 3

Origin = Callable[[BuiltModule, BuiltModule, Tensor], tuple[Place, str]]
"""Of a module, its copy and their input: where they come to differ, and how in words."""


def bench(subject: Subject, length: int = _LENGTH) -> Baseline:
    """A module in eval() that nothing else was done with, and what it gives."""
    sp = comparable_module(subject)
    return baseline(sp, sp.input(min(length, subject.max_length), _ROWS))


def expected_gradients(subject: Subject, length: int = _LENGTH) -> Gradients | None:
    """What a copy has to give; None where the module has no gradients, or others each time."""
    base = bench(subject, length)
    try:
        once, again = (gradients_of(base, base.built) for _ in range(2))
    except SubjectFailedError:
        return None
    return None if differing(again, once, finest_precision(base.built, base.x).eps) else once


def wrong_copy(
    words: str,
    base: Baseline,
    copied: BuiltModule,
    expected: Gradients | None,
    origin: Origin | None = None,
) -> Finding | None:
    """The finding about a copy that does not give what the module does; the copy in words.

    `origin` finds where another output comes from, by default a value that no checkpoint holds.
    """
    sp, at = base.built, f"at S={base.x.shape[1]}"
    try:
        found = base.departure(output_of(copied, base.x))
        if found is not None:
            place, because = (origin or _origin)(sp, copied, base.x)
            return copy_finding(base, f"{words} gives another output {at}: {found.text}{because}", place, found)
        result = None if expected is None else gradients_of(base, copied)
    except SubjectFailedError as failure:
        trouble = trouble_of(failure, sp.subject.packages)
        place = at_own_line(
            sp.subject, sp.module, trouble.place, *(partial(gradients_of, base, each) for each in (copied, sp))
        )
        return copy_finding(base, f"{words}: in {failure.phase} it {went_wrong(trouble)} {at}", place)
    eps = finest_precision(sp, base.x).eps
    if expected is None or result is None or not (names := differing(result, expected, eps)):
        return None
    ways = (partial(gradients_of, base, each) for each in (copied, sp))
    place = gradient_place(sp, result, expected, eps, ways)
    return copy_finding(base, f"{words} gives {described(result, expected, names)} {at}", place)


def output_of(sp: BuiltModule, x: Tensor) -> Tensor:
    """The output without gradients; what is raised is for the check to tell."""
    with torch.no_grad(), unobserved():
        return sp(x)


def gradients_of(base: Baseline, sp: BuiltModule) -> Gradients:
    with unobserved():
        found = gradients(sp, base.x, make_cotangent(base.output, sp.subject.seed))
    assert found is not None
    return found


def copy_finding(base: Baseline, message: str, place: Place, found: Departure | None = None) -> Finding:
    """FWD220 there; how the output departs, where that is what is found."""
    size = {} if found is None else {"error": found.error, "floor": found.floor}
    return Finding(
        message=message,
        where=place,
        evidence={"length": base.x.shape[1], **size},
        repro=command_for(base.built.subject, "FWD220"),
    )


def _origin(sp: BuiltModule, copied: BuiltModule, x: Tensor) -> tuple[Place, str]:
    """The value that no checkpoint holds, where one is seen, and else where the two diverge."""
    divergence = first_divergence(copied, lambda: output_of(sp, x), lambda: output_of(copied, x), {})
    if values := unsaved(sp):
        place = next((each.place for each in values if each.place.file), divergence.place)
        return place, f"; not in its state_dict(): {joined([str(each) for each in values[:_MOST_NAMED]])}"
    return divergence.place, f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""
