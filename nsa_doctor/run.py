"""`nsa-doctor run`: a sweep and any set of checks, in child processes, and what they conclude together."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nsa_doctor.check import Profile
from nsa_doctor.conclude import SWEPT_CODES, environment, subject_facts, swept_results
from nsa_doctor.consolidate import consolidated
from nsa_doctor.examine import Examination, examine
from nsa_doctor.finding import Report, Result, Verdict
from nsa_doctor.findings import findings
from nsa_doctor.laboratory import Assignment, IsolatedLaboratory
from nsa_doctor.measurement import Measurement, Point
from nsa_doctor.plan import sweep_points
from nsa_doctor.registry import Entry
from nsa_doctor.repro import CommandLine
from nsa_doctor.schedule import Task, work_off

CHECK_SECONDS: Mapping[Profile, float] = {"smoke": 30.0, "quick": 90.0, "full": 600.0}
Listener = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Whom to examine, and with which checks; `selected` are the words of --select: what they name is required."""

    assignment: Assignment
    checks: tuple[Entry, ...]
    selected: tuple[str, ...] = ()
    jobs: int = 1
    fail_fast: bool = False
    command: str = "run"


@dataclass
class _State:
    """What was found out so far, kept when the run is interrupted."""

    facts: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    examination: Examination = field(default_factory=Examination)
    notes: dict[str, None] = field(default_factory=dict)


def run(request: RunRequest, listen: Listener = lambda told, done, total: None) -> Report:
    """Examine, conclude; a KeyboardInterrupt ends it early and keeps what was found.

    Raises UsageError when the subject cannot be examined at all and DoctorBrokeError when the doctor's code fails.
    """
    start = time.perf_counter()
    state = _State()
    laboratories = [IsolatedLaboratory(request.assignment) for _ in range(request.jobs)]
    interrupted = False
    try:
        _load(request, laboratories[0], state)
        if state.facts:
            for laboratory in laboratories[1:]:
                laboratory.facts = state.facts
            work_off(_tasks(request, state), laboratories, listen, lambda: request.fail_fast and _has_failed(state))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for laboratory in laboratories:
            laboratory.close()
    entries = {entry.manual.code: entry for entry in request.checks}
    results = (_completed(state.results.get(code), entry, request) for code, entry in entries.items())
    return Report(
        command=request.command,
        subject=subject_facts(request.assignment.spec, state.facts),
        options=_options(request),
        environment=environment(state.facts),
        results=consolidated([result for result in results if result is not None], entries),
        measurements=tuple(state.examination.measurements),
        notes=tuple(state.notes),
        seconds=time.perf_counter() - start,
        interrupted=interrupted,
    )


def _load(request: RunRequest, laboratory: IsolatedLaboratory, state: _State) -> None:
    state.examination.measurements += laboratory.load()
    state.facts = laboratory.facts
    state.notes.update(dict.fromkeys(state.facts.get("notes", ())))
    if not state.facts:
        _conclude_sweep(request, state, [])


def _tasks(request: RunRequest, state: _State) -> list[Task]:
    """The sweep, for all checks it answers, and one task for each other check."""
    swept = {entry.manual.code for entry in request.checks} & SWEPT_CODES
    tasks = []
    if swept:
        work = lambda laboratory: _sweep(request, laboratory, state)  # noqa: E731
        tasks.append(Task("sweep", frozenset(swept), frozenset(), work))
    for entry in request.checks:
        code = entry.manual.code
        if code not in SWEPT_CODES:
            blockers = frozenset(other for other in _others(request, code) if other.startswith(entry.blocked_by))
            tasks.append(Task(code, frozenset({code}), blockers, _checking(request, entry, state)))
    return tasks


def _has_failed(state: _State) -> bool:
    return any(result.verdict in (Verdict.FAIL, Verdict.TIMEOUT) for result in state.results.values())


def _others(request: RunRequest, code: str) -> list[str]:
    return [entry.manual.code for entry in request.checks if entry.manual.code != code]


def _checking(request: RunRequest, entry: Entry, state: _State) -> Callable[[IsolatedLaboratory], str]:
    code, name = entry.manual.code, entry.manual.name
    assignment = request.assignment

    def check(laboratory: IsolatedLaboratory) -> str:
        failed = [
            other
            for other, result in sorted(state.results.items())
            if other.startswith(entry.blocked_by) and result.verdict in (Verdict.FAIL, Verdict.TIMEOUT)
        ]
        missing = [seam for seam in entry.needs if seam not in state.facts["seams"]]
        if missing:
            reason = f"it offers no {' and no '.join(missing)}"
            result = Result(code=code, name=name, verdict=Verdict.SKIP, reason=reason, is_required=False)
        elif entry.blocked_by and failed:
            reason = f"means nothing while {failed[0]} fails"
            result = Result(code=code, name=name, verdict=Verdict.SKIP, reason=reason)
        else:
            result = laboratory.check(code, assignment.timeout, at_most=CHECK_SECONDS[assignment.profile])
        state.results[code] = result
        state.notes.update(dict.fromkeys(result.notes))
        return f"{code} {name}: {result.verdict.value} {result.seconds:.1f} s"

    return check


def _sweep(request: RunRequest, laboratory: IsolatedLaboratory, state: _State) -> str:
    start = time.perf_counter()
    tried = {measurement.point.length for measurement in state.examination.measurements}
    planned = [point for point in sweep_points(request.assignment.profile, state.facts) if point.length not in tried]
    examine(laboratory, state.examination, planned)
    _conclude_sweep(request, state, planned)
    return f"sweep of {len(planned)} points: {time.perf_counter() - start:.1f} s"


def _conclude_sweep(request: RunRequest, state: _State, planned: Sequence[Point]) -> None:
    examination, facts = state.examination, state.facts
    kept = [m for m in examination.measurements if not _is_foreign_dtype(m, facts)]
    for dropped in dict.fromkeys(m.point.dtype for m in examination.measurements if m not in kept):
        state.notes[f"not examined in {dropped}: the subject does not run in it on {request.assignment.device}"] = None
    examination.measurements[:] = kept
    asked = {entry.manual.code for entry in request.checks} & SWEPT_CODES
    dropped_points = [point for point in planned if any(m.point == point for m in kept)]
    options = tuple(facts.get("options", ("--subject", request.assignment.spec) if request.assignment.spec else ()))
    command = CommandLine(
        options=options,
        device=request.assignment.device,
        seed=request.assignment.seed,
        dtype=facts.get("dtype", "float32"),
    )
    found = findings(examination, command)
    for result in swept_results(found, examination, dropped_points, lambda code: code in asked):
        if result.verdict is Verdict.PASS and not _is_looked_at(result.code, dropped_points, facts):
            was_planned = _is_looked_at(result.code, planned, facts)
            reason = f"no such input is part of the profile {request.assignment.profile}"
            reason = f"it runs in {facts['dtype']} alone" if was_planned else reason
            result = replace(result, verdict=Verdict.SKIP, reason=reason, is_required=not was_planned)
        state.results[result.code] = result
    state.notes.update(dict.fromkeys(note for measurement in kept for note in measurement.notes))


def _is_looked_at(code: str, planned: Sequence[Point], facts: Mapping[str, Any]) -> bool:
    """Whether the plan held points that could have shown what this check is about."""
    if code == "NAN104":
        return any(point.values != "normal" for point in planned)
    if code == "NAN105":
        return any(point.dtype != facts.get("dtype") for point in planned)
    return True


def _is_foreign_dtype(measurement: Measurement, facts: Mapping[str, Any]) -> bool:
    """Whether the subject raised in a dtype that nobody asked for: then it is not made for it."""
    trouble = measurement.trouble
    return trouble is not None and trouble.kind == "raised" and measurement.point.dtype != facts.get("dtype")


def _completed(result: Result | None, entry: Entry, request: RunRequest) -> Result | None:
    """What was asked for by name and does not apply is missing, not merely out of place."""
    if result is None or result.is_required:
        return result
    is_named = any(entry.manual.code.startswith(word) for word in request.selected)
    return replace(result, is_required=is_named)


def _options(request: RunRequest) -> dict[str, Any]:
    assignment = request.assignment
    return {
        "checks": [entry.manual.code for entry in request.checks],
        "profile": assignment.profile,
        "device": assignment.device,
        "dtype": assignment.dtype,
        **({"lengths": list(assignment.lengths)} if assignment.are_all_lengths else {}),
        "seed": assignment.seed,
        "jobs": request.jobs,
        "timeout_seconds": assignment.timeout if math.isfinite(assignment.timeout) else None,
    }
