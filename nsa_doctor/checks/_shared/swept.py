"""What a check that sweeps does: examine its points, keep the facts that it answers."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.lengths import spread_lengths
from nsa_doctor.core.measurement import Point
from nsa_doctor.core.reproduce import CommandLine
from nsa_doctor.engine.describe import observed
from nsa_doctor.engine.measure_points import Examination, examine
from nsa_doctor.probes.model.perform import Conditions
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.subject.contract import Subject

NUM_LENGTHS = 16


def swept(
    subject: Subject, answers: Collection[str], points: Iterable[Point], *, forward_only: bool = False
) -> Iterator[Finding]:
    """Findings of the facts that the check answers at those points; other facts are left to their checks."""
    examination = Examination()
    conditions = Conditions(seed=subject.seed, device=subject.device, forward_only=forward_only)
    examine(LocalMeasurer(subject, conditions), examination, points)
    command = CommandLine.on(subject)
    if forward_only:
        command = replace(command, options=(*subject.options, "--forward-only"))
    yield from (finding for fact, finding in observed(examination, command) if fact in answers)


def lengths_of(subject: Subject, count: int = NUM_LENGTHS) -> list[int]:
    """Lengths at which this subject's geometry changes, up to `count` of them."""
    return spread_lengths(subject.geometry, subject.max_length, count)
