"""What an examination by sweeping concludes, check by check, and what a report says of subject and environment."""

import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nsa_doctor import registry
from nsa_doctor.causes import TROUBLE_CODES
from nsa_doctor.examine import Examination
from nsa_doctor.finding import Finding, Result, Verdict
from nsa_doctor.measurement import Point
from nsa_doctor.wording import numbers

SWEPT_CODES = frozenset({"NAN101", "NAN102", "NAN103", "NAN104", "NAN105", *TROUBLE_CODES.values()})


def swept_results(
    found: Sequence[Finding],
    examination: Examination,
    planned: Sequence[Point],
    is_answered: Callable[[str], bool],
) -> tuple[Result, ...]:
    """One result per check that a sweep answers; what could not be measured leaves them skipped, not passed."""
    reason = _missing(examination, planned)
    results = []
    for code, manual in registry.manuals().items():
        own = tuple(finding for finding in found if finding.code == code)
        if code not in SWEPT_CODES or (not own and not is_answered(code)):
            continue
        verdict = Verdict.SKIP if reason else Verdict.PASS
        if own:
            hangs = any(finding.evidence.get("kind") == "timeout" for finding in own)
            verdict = Verdict.TIMEOUT if hangs else Verdict.FAIL
        results.append(Result(code=code, name=manual.name, verdict=verdict, findings=own, reason="" if own else reason))
    return tuple(results)


def subject_facts(name: str | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says of the subject."""
    told = ("description", "input", "width", "dtype", "options", "identity")
    return {"name": name or facts.get("name", "nsa"), **{key: facts[key] for key in told if key in facts}}


def environment(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says of the machine and the software."""
    try:
        own = version("nsa-doctor")
    except PackageNotFoundError:  # run from a checkout
        own = "not installed"
    machine = {"nsa_doctor": own, "python": platform.python_version(), **facts.get("environment", {})}
    return {**machine, "repository": repository()}


def repository() -> str:
    """The root of the checkout that the command is given in, or the current folder where there is none."""
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return ""
    return str(next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here))


def _missing(examination: Examination, planned: Sequence[Point]) -> str:
    """Which points were not measured and why; nothing when all were."""
    measured = {m.point for m in examination.measurements if m.trouble is None}
    answered = {m.point for m in examination.measurements if m.trouble is not None and m.trouble.kind in TROUBLE_CODES}
    missing = [point for point in planned if point not in measured | answered]
    if not missing and planned:
        return ""
    why = {m.trouble.message for m in examination.measurements if m.trouble and m.trouble.kind not in TROUBLE_CODES}
    reason = f"not measured at S={numbers({point.length for point in missing})}" if missing else "nothing measured"
    return reason + (f": {'; '.join(sorted(why))}" if why else "")
