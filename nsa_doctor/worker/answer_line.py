"""An answer as the line that a process sends to whoever asked it: whatever cannot be sent is an internal error."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from nsa_doctor.core.check_file import CheckFileError
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Result, Verdict


def line_of(answered: Callable[[], Mapping[str, Any]]) -> str:
    """The answer that a call gives as JSON on one line, or how the doctor's own code `broke` on the way there.

    A check's file that cannot be used is a matter of `usage`.

    Numbers that are not finite stay NaN, Infinity and -Infinity, which Python reads back as numbers: both ends are
    ours. Reports are strict JSON, and `render/json.py` has words for these there.
    """
    line = attempt(lambda: json.dumps(answered()))
    if isinstance(line, Caught):
        is_usage = isinstance(line.error, CheckFileError)
        said = {"usage": str(line.error)} if is_usage else {"broke": line.sentence}
        return json.dumps({**said, "traceback": line.traceback})
    return line


def is_broken(line: str) -> bool:
    """Whether it is no answer but how the doctor's own code broke, or that a check did."""
    answer = json.loads(line)
    checked = answer.get("checked", {})
    return "broke" in answer or checked.get("verdict") == Verdict.CRASH


def sendable(result: Result) -> dict[str, Any]:
    """The result as plain dictionaries, lists and scalars; CRASH where it holds what JSON cannot say."""
    record = attempt(lambda: _record(result))
    if isinstance(record, Caught):
        reason = f"the result cannot be sent: {record.sentence}"
        return asdict(Result(code=result.code, name=result.name, verdict=Verdict.CRASH, reason=reason))
    return record


def _record(result: Result) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(json.dumps(asdict(result)))
    return record
