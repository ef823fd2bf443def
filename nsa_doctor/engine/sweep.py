"""`nsa-doctor sweep`: lengths x dtypes x modes in a child process, and what the numbers mean."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.facts import needs_of
from nsa_doctor.core.finding import Report
from nsa_doctor.core.measurement import GRADIENTS, MODES, Diagnosis, Measurement, Point
from nsa_doctor.core.registry import Entry
from nsa_doctor.core.report_facts import environment, subject_facts
from nsa_doctor.core.reproduce import CommandLine
from nsa_doctor.engine.conclusions import swept_results
from nsa_doctor.engine.describe import findings
from nsa_doctor.engine.measure_points import Examination, examine, points
from nsa_doctor.isolation.postmortem import notes_of_left
from nsa_doctor.isolation.supervisor import Supervisor

Listener = Callable[[str, int, Measurement | Diagnosis], None]


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """Everything the command line says; no dtypes means the one the subject's parameters have.

    The assignment's `boundaries_up_to` says whether lengths at which the geometry changes are added.
    """

    examination_request: ExaminationRequest
    dtypes: tuple[str, ...] = ()
    values: tuple[str, ...] = ("normal",)


def sweep(request: SweepRequest, listen: Listener = lambda stage, total, answer: None) -> Report:
    """Measure, trace, conclude; a KeyboardInterrupt ends it early and keeps what was measured.

    Raises UsageError when the subject cannot be examined at all and InternalError when the doctor's code fails.
    """
    start = time.perf_counter()
    supervisor = Supervisor(request.examination_request)
    examination = Examination()
    interrupted = False
    planned: list[Point] = []
    try:
        examination.measurements += supervisor.load()
        if supervisor.facts:
            request = replace(request, dtypes=request.dtypes or (supervisor.facts["dtype"],))
            planned = _plan(request, supervisor.facts["boundaries"])
            tried = {measurement.point.length for measurement in examination.measurements}
            left = [point for point in planned if point.length not in tried]
            examine(supervisor, examination, left, lambda stage, answer: listen(stage, len(left), answer))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        supervisor.close()
    facts = supervisor.facts
    found = findings(examination, _command(request, facts))
    return Report(
        command="sweep",
        subject=subject_facts(request.examination_request.spec, facts),
        options=_options(request),
        environment=environment(facts),
        results=swept_results(found, examination, planned, lambda entry: _is_answered(entry, request)),
        measurements=tuple(examination.measurements),
        notes=(*_notes(request, examination), *notes_of_left(supervisor.children)),
        seconds=time.perf_counter() - start,
        interrupted=interrupted,
    )


def _plan(request: SweepRequest, boundaries: Sequence[int]) -> list[Point]:
    asked = request.examination_request.lengths
    return points(sorted({*asked, *boundaries}) if boundaries else asked, request.dtypes, MODES, request.values)


def _command(request: SweepRequest, facts: Mapping[str, Any]) -> CommandLine:
    examination_request = request.examination_request
    command = CommandLine.asked(examination_request, facts)
    options = command.options
    options += ("--dtype", ",".join(request.dtypes)) if request.dtypes and not facts else ()
    options += ("--forward-only",) if examination_request.forward_only else ()
    return replace(command, options=options)


def _is_answered(entry: Entry, request: SweepRequest) -> bool:
    """Whether a sweep of this kind can pass that check."""
    has = {
        "gradients": not request.examination_request.forward_only,
        "values": len(request.values) > 1,
        "dtypes": len(request.dtypes) > 1,
    }
    return all(has[need] for need in needs_of(entry.answers))


def _notes(request: SweepRequest, examination: Examination) -> tuple[str, ...]:
    notes = dict.fromkeys(note for measurement in examination.measurements for note in measurement.notes)
    trained = [m for m in examination.measurements if m.point.mode == "train" and m.trouble is None]
    if request.examination_request.forward_only:
        notes["gradients were not asked for"] = None
    elif trained and not any(measurement.census(GRADIENTS) for measurement in trained):
        notes["nothing got a gradient: the output depends on no parameter and no input that requires one"] = None
    return tuple(notes)


def _options(request: SweepRequest) -> dict[str, Any]:
    examination_request = request.examination_request
    return {
        "lengths": list(examination_request.lengths),
        "boundaries": examination_request.boundaries_up_to is not None,
        "dtypes": list(request.dtypes),
        "values": list(request.values),
        "device": examination_request.device,
        "seed": examination_request.seed,
        "forward_only": examination_request.forward_only,
        "timeout_seconds": examination_request.timeout,
    }
