"""What pydantic refuses in a report, as one sentence: the place, what must be there, and what is."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from nsa_doctor.core.text import escaped
from nsa_doctor.render.report_format.part import UnknownKeyError, expected

_LONGEST_VALUE = 40


def objection(error: ValidationError) -> str:
    """The first thing that is not as the models say."""
    problem = error.errors(include_url=False)[0]
    place, cause = problem["loc"], problem.get("ctx", {}).get("error")
    if problem["type"] == "missing":
        return f"{_shown_place(place[:-1])} must have {place[-1]!r}"
    if isinstance(cause, UnknownKeyError):
        return f"{_shown_place((*place, cause.key))} is not known: {cause.hint}"
    return f"{_shown_place(place)} must be {_either(expected(problem))}, got {_shown(problem['input'])}"


def _shown_place(steps: Sequence[str | int]) -> str:
    """`results[1].findings[0].where`."""
    shown = "".join(f"[{step}]" if isinstance(step, int) else f".{escaped(step)[:_LONGEST_VALUE]}" for step in steps)
    return shown.removeprefix(".") or "the document"


def _either(words: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _shown(value: Any) -> str:
    """A value as a sentence can hold it."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
