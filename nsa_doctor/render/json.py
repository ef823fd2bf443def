"""A report as strict JSON: a versioned record of the same facts the terminal shows."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Literal, get_args

from nsa_doctor.core.documentation import address_of
from nsa_doctor.core.finding import Finding, Report, Result
from nsa_doctor.core.policy_verdict import PolicyVerdict
from nsa_doctor.core.proof import Fate, Proof

Format = Literal["nsa-doctor-report"]
Version = Literal[1]
FORMAT: Format = "nsa-doctor-report"
VERSION: Version = 1
_LEFT_OUT_WHEN_EMPTY = ("throughput", "run", "gates")


def render(report: Report) -> str:
    """The report as one JSON document; numbers that are not finite become the strings NaN, Infinity, -Infinity."""
    record = {
        "format": FORMAT,
        "version": VERSION,
        "command": report.command,
        "decision": report.decision.value,
        "interrupted": report.interrupted,
        "seconds": report.seconds,
        "subject": report.subject,
        "options": report.options,
        "environment": report.environment,
        "results": [_result(result) for result in report.results],
        "measurements": [asdict(measurement) for measurement in report.measurements],
        "notes": report.notes,
        **{name: getattr(report, name) for name in _LEFT_OUT_WHEN_EMPTY if getattr(report, name)},
        **({} if report.verdict is None else {"verdict": _verdict(report.verdict)}),
        **({} if report.proof is None else {"proof": _proof(report.proof)}),
    }
    return json.dumps(strict(record), indent=2, allow_nan=False) + "\n"


def strict(value: Any) -> Any:
    """The value with nothing in it that strict JSON cannot say."""
    if isinstance(value, Mapping):
        return {str(strict(key)): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # a lone surrogate from a file name
    return value


def _verdict(verdict: PolicyVerdict) -> dict[str, Any]:
    record = asdict(verdict)
    if verdict.power is None:
        del record["power"]
    return record


def _proof(proof: Proof) -> dict[str, Any]:
    return {**asdict(proof), "counts": {fate: proof.number(fate) for fate in get_args(Fate)}}


def _result(result: Result) -> dict[str, Any]:
    record = {part.name: getattr(result, part.name) for part in fields(result)}
    for name in ("further", "examined"):
        if not record[name]:
            del record[name]
    return {**record, "findings": [_finding(finding) for finding in result.findings]}


def _finding(finding: Finding) -> dict[str, Any]:
    address = address_of(finding.code)
    return {**asdict(finding), "fingerprint": finding.fingerprint, **({"help": address} if address else {})}
