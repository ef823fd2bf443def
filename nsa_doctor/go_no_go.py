"""`nsa-doctor go-no-go`: everything a gate requires, gathered and decided."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nsa_doctor import run as running
from nsa_doctor.baseline import compare
from nsa_doctor.conclude import environment, subject_facts
from nsa_doctor.decide import Evidence, decide
from nsa_doctor.finding import Report
from nsa_doctor.gate import Gate
from nsa_doctor.identity import commit_of, version_of
from nsa_doctor.laboratory import Assignment, IsolatedLaboratory
from nsa_doctor.run import Listener, RunRequest
from nsa_doctor.runs.facts import facts_of
from nsa_doctor.runs.matching import mismatches
from nsa_doctor.runs.numbers import numbers_of
from nsa_doctor.runs.record import RunRecord

_NEEDED = {"checkpoint": "no --checkpoint was given", "run": "no --run was given"}


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """An earlier report to compare with, and why its findings may stay; no reason, and they may not."""

    report: Report
    name: str
    because: str = ""


@dataclass(frozen=True, kw_only=True)
class GoNoGoRequest:
    """What to decide, by which gate, on which evidence; `again` is the command line that asks the same.

    `module_checks` are those of the gate that look at the subject itself, None where it requires none.
    """

    assignment: Assignment
    gate: Gate
    module_checks: RunRequest | None = None
    run: RunRecord | None = None
    checkpoint: Path | None = None
    earlier: Earlier | None = None
    again: str = ""


@dataclass
class _Gathered:
    """The report so far."""

    report: Report
    missing: dict[str, str] = field(default_factory=dict)


def go_no_go(request: GoNoGoRequest, listen: Listener = lambda told, done, total: None) -> Report:
    """The report with its ruling; a KeyboardInterrupt ends it early, and then nothing is a GO.

    Raises UsageError when the subject cannot be examined at all and DoctorBrokeError when the doctor's code fails.
    """
    start = time.perf_counter()
    gathered = _Gathered(_empty(request))
    _examine_module(request, gathered, listen)
    _examine_checkpoint(request, gathered, listen)
    report = replace(gathered.report, subject=_identified(gathered.report.subject))
    if request.run is not None:
        report = replace(report, run=facts_of(request.run), notes=(*report.notes, *request.run.notes))
    report = replace(report, command="go-no-go", seconds=time.perf_counter() - start)
    return replace(report, verdict=decide(report, request.gate, _evidence(request, report, gathered.missing)))


def _examine_module(request: GoNoGoRequest, gathered: _Gathered, listen: Listener) -> None:
    if request.module_checks is not None:
        gathered.report = running.run(request.module_checks, listen)
        return
    laboratory = IsolatedLaboratory(request.assignment)  # a run has to be matched with something
    try:
        laboratory.load()
    finally:
        laboratory.close()
    subject = subject_facts(request.assignment.spec, laboratory.facts)
    gathered.report = replace(gathered.report, subject=subject, environment=environment(laboratory.facts))


def _examine_checkpoint(request: GoNoGoRequest, gathered: _Gathered, listen: Listener) -> None:
    for entry in request.gate.checks:
        if entry.examines != "module":
            gathered.missing[entry.manual.code] = _NEEDED[entry.examines]


def _empty(request: GoNoGoRequest) -> Report:
    return Report(
        command="go-no-go",
        subject={"name": request.assignment.spec or request.assignment.config or "nsa"},
        options={"seed": request.assignment.seed, "profile": request.gate.profile},
        environment=environment({}),
    )


def _identified(subject: Mapping[str, Any]) -> dict[str, Any]:
    """With version and commit of its sources, which cost a moment to find out."""
    identity = dict(subject.get("identity", {}))
    if identity:
        identity["version"] = version_of(identity.get("packages", ()))
        identity["commit"] = commit_of(identity["file"]) if identity.get("file") else ""
    return {**subject, "identity": identity}


def _evidence(request: GoNoGoRequest, report: Report, missing: Mapping[str, str]) -> Evidence:
    run, earlier = request.run, request.earlier
    return Evidence(
        measured=None if run is None else numbers_of(run),
        device_name="" if run is None else run.device_name,
        mismatches=() if run is None else tuple(mismatches(run, report.subject)),
        missing=missing,
        baseline=None if earlier is None else compare(report, earlier.report, earlier.name),
        baseline_because="" if earlier is None else earlier.because,
        again=request.again,
    )
