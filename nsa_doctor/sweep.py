"""`nsa-doctor sweep`: lengths x dtypes x modes in a child process, and what the numbers mean."""

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from nsa_doctor import registry
from nsa_doctor.causes import TROUBLE_CODES
from nsa_doctor.examine import Examination, examine, points
from nsa_doctor.finding import Finding, Report, Result, Verdict
from nsa_doctor.findings import findings
from nsa_doctor.laboratory import Assignment, IsolatedLaboratory
from nsa_doctor.measurement import GRADIENTS, MODES, Diagnosis, Measurement, Point
from nsa_doctor.repro import CommandLine
from nsa_doctor.wording import numbers

Listener = Callable[[str, int, Measurement | Diagnosis], None]


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """Everything the command line says; no dtypes means the one the subject's parameters have."""

    lengths: tuple[int, ...]
    dtypes: tuple[str, ...] = ()
    values: tuple[str, ...] = ("normal",)
    device: str = "cpu"
    config: str | None = None
    spec: str | None = None
    input: str | None = None
    width: int | None = None
    seed: int = 0
    forward_only: bool = False
    boundaries: bool = False
    timeout: float = 60.0


def sweep(request: SweepRequest, listen: Listener = lambda stage, total, answer: None) -> Report:
    """Measure, trace, conclude; a KeyboardInterrupt ends it early and keeps what was measured.

    Raises UsageError when the subject cannot be examined at all and DoctorBrokeError when the doctor's code fails.
    """
    start = time.perf_counter()
    laboratory = IsolatedLaboratory(_assignment(request))
    examination = Examination()
    interrupted = False
    planned: list[Point] = []
    try:
        examination.measurements += laboratory.load()
        if laboratory.facts:
            request = replace(request, dtypes=request.dtypes or (laboratory.facts["dtype"],))
            planned = _plan(request, laboratory.facts["boundaries"])
            tried = {measurement.point.length for measurement in examination.measurements}
            left = [point for point in planned if point.length not in tried]
            examine(laboratory, examination, left, lambda stage, answer: listen(stage, len(left), answer))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        laboratory.close()
    facts = laboratory.facts
    found = findings(examination, _command(request, facts))
    return Report(
        command="sweep",
        subject={
            "name": request.spec or facts.get("name", "nsa"),
            **_picked(facts, "description", "input", "width", "dtype", "options"),
        },
        options=_options(request),
        environment=_environment(facts),
        results=_results(request, found, examination, planned),
        measurements=tuple(examination.measurements),
        notes=_notes(request, examination),
        seconds=time.perf_counter() - start,
        interrupted=interrupted,
    )


def _assignment(request: SweepRequest) -> Assignment:
    return Assignment(
        spec=request.spec,
        config=request.config,
        input=request.input,
        width=request.width,
        device=request.device,
        seed=request.seed,
        forward_only=request.forward_only,
        lengths=request.lengths,
        boundaries_up_to=max(request.lengths) if request.boundaries else None,
        timeout=request.timeout,
    )


def _plan(request: SweepRequest, boundaries: Sequence[int]) -> list[Point]:
    lengths = sorted({*request.lengths, *boundaries}) if request.boundaries else request.lengths
    return points(lengths, request.dtypes, MODES, request.values)


def _command(request: SweepRequest, facts: Mapping[str, Any]) -> CommandLine:
    options = tuple(facts.get("options", ("--subject", request.spec) if request.spec else ()))
    options += ("--forward-only",) if request.forward_only else ()
    return CommandLine(options=options, device=request.device, seed=request.seed, dtype=facts.get("dtype", "float32"))


def _results(
    request: SweepRequest, found: Sequence[Finding], examination: Examination, planned: Sequence[Point]
) -> tuple[Result, ...]:
    """One result per check that a sweep answers; what could not be measured leaves them skipped, not passed."""
    measured = {m.point for m in examination.measurements if m.trouble is None}
    answered = {m.point for m in examination.measurements if m.trouble is not None and m.trouble.kind in TROUBLE_CODES}
    missing = [point for point in planned if point not in measured | answered]
    reason = ""
    if missing or not planned:
        why = {m.trouble.message for m in examination.measurements if m.trouble and m.trouble.kind not in TROUBLE_CODES}
        reason = f"not measured at S={numbers({point.length for point in missing})}" if missing else "nothing measured"
        reason += f": {'; '.join(sorted(why))}" if why else ""
    results = []
    for code, manual in registry.manuals().items():
        own = tuple(finding for finding in found if finding.code == code)
        if not own and not _is_answered(code, request):
            continue
        verdict = Verdict.SKIP if reason else Verdict.PASS
        if own:
            hangs = any(finding.evidence.get("kind") == "timeout" for finding in own)
            verdict = Verdict.TIMEOUT if hangs else Verdict.FAIL
        results.append(Result(code=code, name=manual.name, verdict=verdict, findings=own, reason="" if own else reason))
    return tuple(results)


def _is_answered(code: str, request: SweepRequest) -> bool:
    """Whether a sweep of this kind can pass that check."""
    if code == "NAN102":
        return not request.forward_only
    if code == "NAN104":
        return len(request.values) > 1
    if code == "NAN105":
        return len(request.dtypes) > 1
    return code in {"NAN101", "NAN103", *TROUBLE_CODES.values()}


def _notes(request: SweepRequest, examination: Examination) -> tuple[str, ...]:
    notes = dict.fromkeys(note for measurement in examination.measurements for note in measurement.notes)
    trained = [m for m in examination.measurements if m.point.mode == "train" and m.trouble is None]
    if request.forward_only:
        notes["gradients were not asked for"] = None
    elif trained and not any(measurement.census(GRADIENTS) for measurement in trained):
        notes["nothing got a gradient: the output depends on no parameter and no input that requires one"] = None
    return tuple(notes)


def _options(request: SweepRequest) -> dict[str, Any]:
    return {
        "lengths": list(request.lengths),
        "boundaries": request.boundaries,
        "dtypes": list(request.dtypes),
        "values": list(request.values),
        "device": request.device,
        "seed": request.seed,
        "forward_only": request.forward_only,
        "timeout_seconds": request.timeout,
    }


def _environment(facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        own = version("nsa-doctor")
    except PackageNotFoundError:  # run from a checkout
        own = "not installed"
    return {"nsa_doctor": own, "python": platform.python_version(), **facts.get("environment", {})}


def _picked(facts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: facts[name] for name in names if name in facts}
