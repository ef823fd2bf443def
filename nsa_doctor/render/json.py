"""A report as strict JSON: a versioned record of the same facts the terminal shows."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nsa_doctor.finding import Report

FORMAT = "nsa-doctor-report"
VERSION = 1


def render(report: Report) -> str:
    """The report as one JSON document; numbers that are not finite become the strings NaN, Infinity, -Infinity."""
    record = {
        "format": FORMAT,
        "version": VERSION,
        "command": report.command,
        "decision": report.decision.value,
        "interrupted": report.interrupted,
        "seconds": round(report.seconds, 3),
        "subject": report.subject,
        "options": report.options,
        "environment": report.environment,
        "results": [asdict(result) for result in report.results],
        "measurements": [asdict(measurement) for measurement in report.measurements],
        "notes": report.notes,
        **({"throughput": report.throughput} if report.throughput else {}),
    }
    return json.dumps(_strict(record), indent=2, allow_nan=False) + "\n"


def _strict(value: Any) -> Any:
    """The value with nothing in it that strict JSON cannot say."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # a lone surrogate from a file name
    return value
