"""A comparison as strict JSON: a versioned record of the same facts the terminal shows."""

import json
from dataclasses import asdict
from typing import Any

from nsa_doctor.core.comparison import Comparison
from nsa_doctor.core.finding import Finding
from nsa_doctor.render.json import strict

FORMAT, VERSION = "nsa-doctor-comparison", 1


def render(comparison: Comparison) -> str:
    """The comparison as one JSON document."""
    record = {
        "format": FORMAT,
        "version": VERSION,
        "outcome": comparison.outcome.value,
        "subject": comparison.subject,
        "old": {"report": comparison.old_name, "decision": comparison.old.value},
        "new": {"report": comparison.new_name, "decision": comparison.new.value},
        "appeared": _findings(comparison.appeared),
        "fixed": _findings(comparison.fixed),
        "still": _findings(comparison.still),
        "unseen": _findings(comparison.unseen),
        "unanswered": comparison.unanswered,
        "further": dict(zip(("appeared", "fixed", "still"), comparison.further, strict=True)),
        "slower": [asdict(each) for each in comparison.slower],
        "remarks": comparison.remarks,
        "notes": comparison.notes,
    }
    return json.dumps(strict(record), indent=2, allow_nan=False) + "\n"


def _findings(found: tuple[Finding, ...]) -> list[dict[str, Any]]:
    return [{**asdict(each), "fingerprint": each.fingerprint} for each in found]
