"""A report read back from its JSON, strictly: what nsa-doctor has not written is refused in one sentence."""

import errno
import io
import json
import math
import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from nsa_doctor.core.finding import Report
from nsa_doctor.core.text import escaped
from nsa_doctor.render.json import FORMAT, VERSION, strict

STANDARD_INPUT = "-"
_MOST_BYTES = 64 * 2**20
_DEEPEST = 40
_PATIENCE, _LOOK, _PART = 10.0, 0.05, 1 << 16
_MOST_DIGITS = 19
_REMEDY = "give a file that nsa-doctor wrote with --output report.json"


class UnreadableReportError(ValueError):
    """There is no report in this file; one sentence says why."""


def read_report(source: str | os.PathLike[str]) -> Report:
    """The report in a file, or in standard input for `-`; raises UnreadableReportError."""
    is_input = str(source) == STANDARD_INPUT
    name = "standard input" if is_input else escaped(str(source))
    if is_input and sys.stdin is None:
        raise UnreadableReportError(f"{name}: is closed; {_REMEDY}")
    try:
        content = _content(sys.stdin.fileno() if is_input else source)
    except FileNotFoundError as error:
        raise UnreadableReportError(f"{name}: there is no such file; {_REMEDY}") from error
    except IsADirectoryError as error:
        raise UnreadableReportError(f"{name}: is a folder; give the report.json in it") from error
    except OSError as error:
        raise UnreadableReportError(f"{name}: cannot be read: {error.strerror or error}; {_REMEDY}") from error
    except ValueError as error:  # a zero byte in the name, or a closed standard input
        raise UnreadableReportError(f"{name}: cannot be read: {error}; {_REMEDY}") from error
    try:
        return parse_report(content)
    except UnreadableReportError as error:
        raise UnreadableReportError(f"{name}: {error}") from error


def _content(source: str | os.PathLike[str] | int) -> bytes:
    """What is in it, up to a byte more than a report may have."""
    if isinstance(source, int) or not stat.S_ISFIFO(os.stat(source).st_mode):
        with open(source, "rb", closefd=not isinstance(source, int)) as file:
            return file.read(_MOST_BYTES + 1)
    descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK)  # or it would wait for a writer for ever
    with open(descriptor, "rb", buffering=0) as pipe:
        return b"".join(_written(pipe))


def _written(pipe: io.FileIO) -> Iterator[bytes]:
    """What is written into a pipe: for as long as a writer takes, but one that has none is given up after seconds."""
    size, end = 0, time.monotonic() + _PATIENCE
    while size <= _MOST_BYTES:
        part = pipe.read(_PART)
        if part is None:  # nothing yet, of a writer that is there
            select.select([pipe], [], [])
        elif part:
            size += len(part)
            yield part
        elif size:
            return
        elif time.monotonic() > end:
            raise TimeoutError(errno.ETIMEDOUT, f"it is a pipe, and nothing was written into it for {_PATIENCE:g} s")
        else:
            time.sleep(_LOOK)


def parse_report(content: bytes | str) -> Report:
    """The report in this JSON; raises UnreadableReportError."""
    document = _parsed(_text(content))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UnreadableReportError(f"is JSON, and no report: its format is not {FORMAT!r}; {_REMEDY}")
    version = document.get("version")
    if type(version) is int and version != VERSION:
        remedy = "render it with the nsa-doctor that wrote it" if version < VERSION else "install a newer nsa-doctor"
        raise UnreadableReportError(f"is a report of version {version}, and this nsa-doctor reads {VERSION}; {remedy}")
    report = _validated(document)
    if document["decision"] != report.decision.value:
        raise UnreadableReportError(
            f"says {document['decision']}, and what it holds makes {report.decision.value}: it was changed by hand"
        )
    return report


def _validated(document: dict[str, Any]) -> Report:
    from pydantic import ValidationError

    from nsa_doctor.render.report_format.document import Document
    from nsa_doctor.render.report_format.objection import objection

    try:
        report: Any = Document.model_validate(document)
    except ValidationError as error:
        raise UnreadableReportError(f"is not as nsa-doctor writes it: {objection(error)}") from error
    assert isinstance(report, Report)
    return report


def _text(content: bytes | str) -> str:
    if len(content) > _MOST_BYTES:
        raise UnreadableReportError(f"is larger than {_MOST_BYTES >> 20} MB, and no report is; {_REMEDY}")
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableReportError(f"is not JSON in UTF-8: byte {error.start} is no text; {_REMEDY}") from error
    if not text.strip():
        raise UnreadableReportError(f"is empty; {_REMEDY}")
    return text


def _parsed(text: str) -> Any:
    """The JSON, with nothing in it that two readers could take for two things."""
    try:
        document = json.loads(
            text,
            parse_constant=_refuse_word,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_unambiguous,
        )
    except json.JSONDecodeError as error:
        body = text.rstrip()
        is_open = not body.endswith("}") or error.pos >= len(body)
        if body.startswith("{") and is_open and error.msg != "Extra data":
            raise UnreadableReportError(f"ends in the middle, after {len(text)} characters: it was cut off") from error
        raise UnreadableReportError(
            f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}; {_REMEDY}"
        ) from error
    except RecursionError as error:
        raise UnreadableReportError(f"is nested too deeply for a report; {_REMEDY}") from error
    except ValueError as error:  # what the hooks refuse
        raise UnreadableReportError(f"is not JSON as nsa-doctor writes it: {error}") from error
    return strict(_shallow(document))


def _refuse_word(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number in JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"the number {digits[:20]}... is too large")
    return int(digits)


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {ascii(twice)[:40]} stands twice in one object")
    return found


def _shallow(document: Any) -> Any:
    """The document, once it is known that what recurses into it comes back."""
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            item
            for outer in level
            if isinstance(outer, (dict, list))
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return document
    raise UnreadableReportError(f"is nested too deeply for a report; {_REMEDY}")
