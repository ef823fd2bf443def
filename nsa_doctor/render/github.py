"""A report as workflow commands of GitHub Actions: the decision, then annotations on the lines at fault."""

from collections.abc import Iterator
from itertools import islice
from typing import Literal

from nsa_doctor.core.finding import Decision, Finding, Report, Result
from nsa_doctor.core.text import escaped
from nsa_doctor.render.overview import missing
from nsa_doctor.render.repository_paths import in_repository, is_file, line_of, subjects_file
from nsa_doctor.render.summary import acceptances, conclusion, ordered_findings, subject_line

_MOST_SHOWN = 10  # of each level in a step; GitHub drops the rest
_LONGEST = 2000
Level = Literal["error", "warning", "notice"]
_LEVELS: dict[Decision, Level] = {Decision.GO: "notice", Decision.NO_GO: "error", Decision.UNKNOWN: "warning"}


def render(report: Report) -> str:
    """One command per line; what GitHub would drop is counted in the first."""
    known = acceptances(report)
    pairs = [pair for pair in ordered_findings(report) if pair[1].fingerprint not in known]
    shown = pairs[: _MOST_SHOWN - 1]
    more = f"; {len(pairs) - len(shown)} more findings are in the report" if len(pairs) > len(shown) else ""
    further = [result.remark for result in report.results]
    message = "\n".join([subject_line(report), f"{conclusion(report)}{more}", *filter(None, further)])
    lines = [_command(_LEVELS[report.decision], message, title=f"nsa-doctor: {report.decision.value}")]
    lines += [_annotation("error", result, finding, report) for result, finding in shown]
    lines += islice(_not_checked(report), _MOST_SHOWN - 1)
    accepted = [pair for pair in ordered_findings(report) if pair[1].fingerprint in known]
    for result, finding in accepted[: _MOST_SHOWN - 1]:
        lines.append(_annotation("notice", result, finding, report, f"accepted: {known[finding.fingerprint]}"))
    return "\n".join(lines) + "\n"


def _annotation(level: Level, result: Result, finding: Finding, report: Report, remark: str = "") -> str:
    place = finding.where
    known = place.file if is_file(place.file) else subjects_file(report)
    file = in_repository(known, report) if known else None
    lines = [
        finding.message,
        remark,
        f"module: {place.module_text}" if place.module_text else "",
        f"line: {place.line_text}" if place.file and file is None else "",
        f"control: {finding.control}" if finding.control else "",
        f"reproduce: {finding.repro}" if finding.repro else "",
    ]
    return _command(
        level,
        "\n".join(line for line in lines if line),
        title=" ".join(part for part in (finding.code, result.name) if part),
        file=file or "",
        line=line_of(place) if file else 0,
    )


def _not_checked(report: Report) -> Iterator[str]:
    for codes, reason in missing(report):
        yield _command("warning", reason or "no reason is known", title=f"not checked: {codes}")


def _command(level: Level, message: str, *, title: str, file: str = "", line: int = 0) -> str:
    given = {"file": file, "line": str(line or ""), "title": title}
    properties = ",".join(f"{name}={_property(value)}" for name, value in given.items() if value)
    return f"::{level} {properties}::{_data(message)}"


def _data(text: str) -> str:
    """The message; only `%` is left to escape, since line breaks are ours and no other control sign comes through."""
    lines = [escaped(line).replace("%", "%25") for line in text[:_LONGEST].splitlines()]
    return "%0A".join(lines)


def _property(text: str) -> str:
    return _data(text[:_LONGEST].replace("\n", " ")).replace(":", "%3A").replace(",", "%2C")
