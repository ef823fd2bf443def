"""`nsa-doctor run`: a sweep and any set of checks, in child processes, and what they conclude together."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nsa_doctor.core import registry
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.core.registry import Entry
from nsa_doctor.core.report_facts import environment, subject_facts
from nsa_doctor.core.usual_costs import cost_of_a_finding
from nsa_doctor.engine.conclusions import is_swept, with_observed
from nsa_doctor.engine.schedule import Task, work_off
from nsa_doctor.engine.session import Session
from nsa_doctor.isolation.postmortem import notes_of_left
from nsa_doctor.isolation.supervisor import Supervisor

Listener = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Whom to examine, and with which checks; `selected` are the words of --select: codes among them are required."""

    examination_request: ExaminationRequest
    checks: tuple[Entry, ...]
    selected: tuple[str, ...] = ()
    jobs: int = 1
    fail_fast: bool = False
    command: str = "run"


def run(
    request: RunRequest,
    listen: Listener = lambda text, done, total: None,
    learn: Callable[[Mapping[str, Any]], None] = lambda facts: None,
) -> Report:
    """Examine, conclude; a KeyboardInterrupt ends it early and keeps what was found.

    `learn` receives the subject's facts as soon as they are known.
    Raises UsageError when the subject cannot be examined at all and InternalError when the doctor's code fails.
    """
    start = time.perf_counter()
    entries = {entry.manual.code: entry for entry in request.checks}
    session = Session(request.examination_request, frozenset(entries))
    supervisors = [Supervisor(request.examination_request) for _ in range(request.jobs)]
    supervisors[0].tell = lambda text: listen(text, 0, len(entries))
    interrupted = False
    try:
        session.load(supervisors[0])
        learn(session.facts)
        if session.facts:
            for supervisor in supervisors[1:]:
                supervisor.facts = session.facts
            work_off(_tasks(request, session), supervisors, listen, lambda: request.fail_fast and session.has_failed)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for supervisor in supervisors:
            supervisor.close()
    return Report(
        command=request.command,
        subject=subject_facts(request.examination_request.spec, session.facts),
        options=_options(request),
        environment=environment(session.facts),
        results=results_of(session, request),
        measurements=tuple(session.examination.measurements),
        notes=(*session.notes, *notes_of_left(child for each in supervisors for child in each.children)),
        seconds=time.perf_counter() - start,
        interrupted=interrupted,
    )


def results_of(session: Session, request: RunRequest) -> tuple[Result, ...]:
    """What a session has found out so far of what was asked for, each cause once, and what kept it from an answer."""
    entries = {entry.manual.code: entry for entry in request.checks}
    asked = (_completed(session.results.get(code), entry, request) for code, entry in entries.items())
    beside = (result for result in session.obstacles if result.code not in entries)
    results = with_observed([*(result for result in asked if result is not None), *beside], session.observed)
    return deduplicate(results, {**registry.entries(), **entries})


def _tasks(request: RunRequest, session: Session) -> list[Task]:
    """The sweep, for all checks it answers, and one task for each other check, the most telling first."""
    swept = frozenset(entry.manual.code for entry in request.checks if is_swept(entry))
    tasks = []
    if swept:
        tasks.append(Task("sweep", swept, frozenset(), lambda supervisor: _sweep(session, supervisor)))
    for entry in sorted(request.checks, key=_most_telling):
        code = entry.manual.code
        if code not in swept:
            others = (other for other in session.codes if other != code)
            blockers = frozenset(other for other in others if other.startswith(entry.blocked_by))
            tasks.append(Task(code, frozenset({code}), blockers, _checking(entry, session)))
    return tasks


def _most_telling(entry: Entry) -> tuple[bool, float]:
    """A key to sort by what finds most for the time that it takes: an examination may end, or be ended, before all."""
    return not entry.telling, cost_of_a_finding(entry.manual.code)


def _checking(entry: Entry, session: Session) -> Callable[[Supervisor], str]:
    def check(supervisor: Supervisor) -> str:
        result = session.check(entry, supervisor)
        is_idle = result.verdict is Verdict.SKIP and not result.is_required
        how = "not applicable" if is_idle else f"{result.verdict.value} {result.seconds:.1f} s"
        return f"{entry.manual.code} {entry.manual.name}: {how}"

    return check


def _sweep(session: Session, supervisor: Supervisor) -> str:
    start = time.perf_counter()
    count = session.sweep(supervisor)
    return f"sweep of {count} points: {time.perf_counter() - start:.1f} s"


def _completed(result: Result | None, entry: Entry, request: RunRequest) -> Result | None:
    """What was asked for by its code and does not apply is missing; of a family, what applies was asked for."""
    if result is None or result.is_required:
        return result
    return replace(result, is_required=entry.manual.code in request.selected)


def _options(request: RunRequest) -> dict[str, Any]:
    examination_request = request.examination_request
    return {
        "checks": [entry.manual.code for entry in request.checks],
        "profile": examination_request.profile,
        "device": examination_request.device,
        "dtype": examination_request.dtype,
        **({"lengths": list(examination_request.lengths)} if examination_request.are_all_lengths else {}),
        "seed": examination_request.seed,
        "jobs": request.jobs,
        "timeout_seconds": examination_request.timeout if math.isfinite(examination_request.timeout) else None,
    }
