"""`nsa-doctor go-no-go`: everything a policy requires, gathered and decided."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nsa_doctor.artifacts.checkpoint.fault import USAGE
from nsa_doctor.artifacts.checkpoint.fit import misfits
from nsa_doctor.artifacts.checkpoint.gate_stats import Examined, GateStatsRequest, examine_checkpoints
from nsa_doctor.artifacts.data.examine import examine_data
from nsa_doctor.artifacts.data.request import DataRequest
from nsa_doctor.artifacts.judging import judged
from nsa_doctor.artifacts.training_run.facts import facts_of
from nsa_doctor.artifacts.training_run.matching import mismatches
from nsa_doctor.artifacts.training_run.numbers import numbers_of
from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.replay import RecomputeRequest, is_asked_for, with_steps_again
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Kind
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Report, Result
from nsa_doctor.core.identity import commit_of, version_of
from nsa_doctor.core.own_score import own_score
from nsa_doctor.core.report_facts import environment, subject_facts
from nsa_doctor.core.reproduce import arguments
from nsa_doctor.engine import run as running
from nsa_doctor.engine.run import Listener, RunRequest
from nsa_doctor.engine.session import Session
from nsa_doctor.isolation.supervisor import Supervisor
from nsa_doctor.policy.baseline import compare, mismatch
from nsa_doctor.policy.policy import Policy
from nsa_doctor.policy.power import power_of
from nsa_doctor.policy.verdict import Evidence, decide

_NEEDED = {
    "module": "a function was given, and no module",
    "function": "a module was given, and no function",
    "checkpoint": "no --checkpoint was given",
    "run": "no --run was given",
    "data": "no --data was given",
}


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """An earlier report to compare with, and why its findings may stay; no reason, and they may not."""

    report: Report
    name: str
    because: str = ""


@dataclass(frozen=True, kw_only=True)
class GoNoGoRequest:
    """What to decide, by which policy, on which evidence; `again` is the command line that asks the same.

    `module_checks` are those of the policy that look at the subject itself, None where it requires none. `recompute`
    has some steps of the run computed again.
    """

    examination_request: ExaminationRequest
    policy: Policy
    module_checks: RunRequest | None = None
    run: RunRecord | None = None
    recompute: RecomputeRequest | None = None
    checkpoint: GateStatsRequest | None = None
    data: DataRequest | None = None
    earlier: Earlier | None = None
    again: str = ""


def go_no_go(request: GoNoGoRequest, listen: Listener = lambda text, done, total: None) -> Report:
    """The report with its ruling; a KeyboardInterrupt ends it early, and then nothing is a GO.

    Raises UsageError when the subject cannot be examined at all and InternalError when the doctor's code fails.
    """
    start = time.perf_counter()
    request = replace(request, policy=request.policy.with_given(_given(request)))
    checkpoint = None if request.checkpoint is None else _read_checkpoint(request.checkpoint, listen)
    facts: dict[str, Any] = {}
    report = _examined(request, listen, facts)
    report = replace(report, subject=_identified(report.subject))
    if checkpoint is not None:
        report = _with_checkpoint(report, checkpoint, request.policy)
    if request.run is not None:
        report = _with_run(report, request.run, request, listen)
    if request.data is not None:
        report = _with_data(report, request.data, request.policy, listen)
    report = replace(report, command="go-no-go", seconds=time.perf_counter() - start)
    verdict = decide(report, request.policy, _evidence(request, report, _misfits(checkpoint, report, facts)))
    return replace(report, verdict=replace(verdict, power=power_of(report, _given(request), own_score())))


def _given(request: GoNoGoRequest) -> list[Kind]:
    """The kinds of things that were handed over beside the subject."""
    given: dict[Kind, object] = {"checkpoint": request.checkpoint, "run": request.run, "data": request.data}
    return [kind for kind, value in given.items() if value is not None]


def _read_checkpoint(request: GateStatsRequest, listen: Listener) -> Examined:
    """Read it first: what is no checkpoint at all should not cost a minute to find out."""
    examined = examine_checkpoints(request, listen)
    if examined.interrupted:
        raise KeyboardInterrupt
    for reading in examined.readings:
        if reading.fault in USAGE:
            raise UsageError(f"--checkpoint {reading.sentence}")
    return examined


def _with_checkpoint(report: Report, examined: Examined, policy: Policy) -> Report:
    notes = (note for reading in examined.readings for note in reading.notes)
    return replace(_with_results(report, examined.results, policy, notes), gates=examined.gates)


def _with_run(report: Report, run: RunRecord, request: GoNoGoRequest, listen: Listener) -> Report:
    policy = request.policy
    asked = [entry for entry in policy.checks if entry.examines == "run"]
    if request.recompute is not None and is_asked_for(asked):
        try:
            run = with_steps_again(run, request.recompute, listen)
        except KeyboardInterrupt:
            report = replace(report, interrupted=True)
    subject = RunSubject(name=run.folder, record=run, now=time.time(), options=arguments((run.folder,)))
    return replace(_with_results(report, judged(asked, subject), policy, run.notes), run=facts_of(run))


def _with_data(report: Report, asked: DataRequest, policy: Policy, listen: Listener) -> Report:
    if not any(entry.examines == "data" for entry in policy.checks):
        return report
    examined = examine_data(asked, listen)
    if examined.interrupted:
        return replace(report, interrupted=True)
    return _with_results(report, examined.results, policy, ())


def _with_results(report: Report, results: Iterable[Result], policy: Policy, notes: Iterable[str]) -> Report:
    """The report with those of the results that the policy requires."""
    asked = {entry.manual.code for entry in policy.checks}
    own = (result for result in results if result.code in asked)
    return replace(report, results=(*report.results, *own), notes=(*report.notes, *notes))


def _examined(request: GoNoGoRequest, listen: Listener, facts: dict[str, Any]) -> Report:
    """The report of the module's checks; of the module alone where the policy requires none. Fills in the facts."""
    if request.module_checks is not None:
        return running.run(request.module_checks, listen, facts.update)
    session = Session(request.examination_request, frozenset())
    supervisor = Supervisor(request.examination_request)  # a run has to be matched with something
    try:
        session.load(supervisor)
        facts.update(session.facts)
    finally:
        supervisor.close()
    return Report(
        command="go-no-go",
        subject=subject_facts(request.examination_request.spec, facts),
        options={"seed": request.examination_request.seed, "profile": request.policy.profile},
        environment=environment(facts),
        results=session.obstacles,
        measurements=tuple(session.examination.measurements),
    )


def _identified(subject: Mapping[str, Any]) -> dict[str, Any]:
    """With version and commit of its sources, which cost a moment to find out."""
    identity = dict(subject.get("identity", {}))
    if identity:
        identity["version"] = version_of(identity.get("packages", ()))
        identity["commit"] = commit_of(identity["file"]) if identity.get("file") else ""
    return {**subject, "identity": identity}


def _misfits(examined: Examined | None, report: Report, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Why a checkpoint is none of the subject; nothing of one that could not be read, which its own check tells."""
    readings = [] if examined is None else [reading for reading in examined.readings if reading.fault is None]
    name = str(report.subject["name"])
    return tuple(sentence for reading in readings for sentence in misfits(reading, facts.get("parameters", {}), name))


def _others(request: GoNoGoRequest, report: Report) -> Iterator[str]:
    """Why the run or the earlier report is none of the subject."""
    if request.run is not None:
        yield from mismatches(request.run, report.subject)
    if request.earlier is not None:
        yield from mismatch(report, request.earlier.report, request.earlier.name)


def _evidence(request: GoNoGoRequest, report: Report, unfit: tuple[str, ...]) -> Evidence:
    run, earlier = request.run, request.earlier
    there = (request.examination_request.kind, *_given(request))
    missing = [entry for entry in request.policy.checks if entry.examines not in there]
    required = request.policy.codes
    beside = [result for result in report.results if result.code not in required and result.findings]
    return Evidence(
        measured=None if run is None else numbers_of(run),
        device_name="" if run is None else run.device_name,
        mismatches=(*unfit, *_others(request, report)),
        obstacles=tuple(result.code for result in beside),
        missing={entry.manual.code: _NEEDED[entry.examines] for entry in missing},
        baseline=None if earlier is None else compare(report, earlier.report, earlier.name),
        baseline_because="" if earlier is None else earlier.because,
        again=request.again,
    )
