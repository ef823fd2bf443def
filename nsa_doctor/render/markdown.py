"""A report for a pull request's comment or a job's summary: the verdict first, then findings, the rest folded."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nsa_doctor import registry
from nsa_doctor.check import Manual
from nsa_doctor.finding import Finding, Report, Result
from nsa_doctor.render.again import command_line
from nsa_doctor.render.locating import in_repository
from nsa_doctor.render.markdown_text import code, fenced, inside_html, text
from nsa_doctor.render.overview import is_idle, missing, overview
from nsa_doctor.render.summary import (
    acceptances,
    conclusion,
    conditions,
    findings_told,
    long_evidence,
    measured,
    scalar,
)
from nsa_doctor.ruling import Compared, Held, Required, Ruling

_MOST_CHARACTERS = 60_000  # GitHub takes 65,536 in a comment
_MOST_ROWS = 100
_MOST_LINES = 100


def render(report: Report) -> str:
    """The report as GitHub's Markdown; what does not fit into a comment is counted and left out."""
    pairs = list(findings_told(report))
    start = "\n\n".join([*_verdict(report), *_table(report, pairs)])
    end = "\n\n".join(_closing(report))
    room, told = _MOST_CHARACTERS - len(start) - len(end), registry.manuals()
    cards: list[str] = []
    for result, finding in pairs:
        card = "\n\n".join(_card(result, finding, told.get(finding.code), report))
        room -= len(card) + 2
        if room < 0:
            cards.append(f"The details of {len(pairs) - len(cards)} more findings are in the JSON report.")
            break
        cards.append(card)
    return "\n\n".join(part for part in (start, *cards, end) if part) + "\n"


def _verdict(report: Report) -> Iterator[str]:
    yield f"## nsa-doctor: {report.decision.value}"
    if report.verdict is None:
        yield f"{conclusion(report)}."
    else:
        yield f"By the gate {code(report.verdict.gate)} (SHA-256 {code(report.verdict.gate_digest)}):"
        yield _bulleted([text(sentence) for sentence in report.verdict.why])
    about = [code(str(report.subject.get("name", ""))), text(str(report.subject.get("description", "")))]
    yield " — ".join(part for part in (*about, text(conditions(report))) if part)
    if report.interrupted:
        yield "**Interrupted**: only what was measured until then stands here."


def _table(report: Report, pairs: Sequence[tuple[Result, Finding]]) -> Iterator[str]:
    if not pairs:
        return
    known, rows = acceptances(report), []
    for _, finding in pairs:
        remark = " *(accepted)*" if finding.fingerprint in known else ""
        rows.append((code(finding.code), text(finding.message) + remark, _where(finding, report)))
    yield _tabled(("check", "finding", "where"), rows)


def _card(result: Result, finding: Finding, manual: Manual | None, report: Report) -> Iterator[str]:
    name = manual.name if manual else result.name
    where = finding.where.module_text or finding.where.line_text
    place = f" in <code>{inside_html(where)}</code>" if where else ""
    yield f"<details><summary><b>{inside_html(finding.code)}</b> {inside_html(name)}{place}</summary>"
    facts = {
        "What": text(finding.message),
        "Where": _where(finding, report),
        "Measured": ", ".join(f"{text(key)} {code(value)}" for key, value in measured(finding)),
        "Control": text(finding.control),
        "Seen by": ", ".join(code(other) for other in finding.also),
        "Accepted": text(acceptances(report).get(finding.fingerprint, "")),
        "Matters": text(manual.matters) if manual else "",
        "Fix": text(manual.fix) if manual else "",
        "Fingerprint": code(finding.fingerprint),
    }
    yield _bulleted([f"**{label}**: {told}" for label, told in facts.items() if told])
    for key, block in long_evidence(finding):
        yield f"{text(key)}:"
        yield fenced(block)
    if finding.repro:
        yield "See it again:"
        yield fenced(finding.repro, "sh")
    yield "</details>"


def _where(finding: Finding, report: Report) -> str:
    place = finding.where
    path = in_repository(place.file, report) or place.file if place.file else ""
    line = f"{path}:{place.line}" if path else ""
    function = f" in {code(place.function)}" if line and place.function else ""
    return ", ".join(part for part in (code(place.module_text), code(line) + function) if part)


def _closing(report: Report) -> Iterator[str]:
    if report.verdict is not None:
        yield from _ruling(report.verdict)
    unknown = [f"{text(codes)}: {text(reason)}" for codes, reason in missing(report)]
    if unknown:
        yield "### Not checked"
        yield _bulleted(unknown)
    idle = [
        f"{code(result.code)} {text(result.name)}: {text(result.reason)}"
        for result in report.results
        if is_idle(result)
    ]
    if idle:
        yield _folded(f"{len(idle)} checks do not apply to this subject", _bulleted(idle))
    if report.notes:
        yield _folded("Notes", _bulleted([text(note) for note in report.notes]))
    checks = list(overview(report))
    if checks:
        yield _folded("Checks", fenced("\n".join(checks)))
    yield _folded("Subject and environment", _tabled(("", ""), list(_facts(report))))
    again = command_line(report)
    if again:
        yield "See it again:"
        yield fenced(again, "sh")


def _ruling(ruling: Ruling) -> Iterator[str]:
    if ruling.limits:
        yield "### Limits"
        yield _tabled(("limit", "measured", "bound", "", "because"), [_held(each) for each in ruling.limits])
    if ruling.baseline is not None:
        yield _compared(ruling.baseline)
    if ruling.required:
        rows = [_required(each) for each in ruling.required]
        yield _folded(f"{len(rows)} required checks", _tabled(("check", "stands", "because"), rows))


def _held(held: Held) -> tuple[str, ...]:
    unit = f" {held.unit}" if held.unit else ""
    measured = "not measured" if held.measured is None else f"{scalar(held.measured)}{unit}"
    bound = f"{held.bound}{unit}" + (f" on {held.device}" if held.device else "")
    return (text(held.title), text(measured), text(bound), held.kept, text(held.because))


def _required(required: Required) -> tuple[str, ...]:
    stands = f"{required.stands} ({text(required.verdict)})"
    return (
        code(required.code),
        stands + (f": {text(required.reason)}" if required.reason else ""),
        text(required.because),
    )


def _compared(compared: Compared) -> str:
    parts = {"new": compared.new, "fixed": compared.fixed, "unchanged": compared.unchanged}
    counted = [f"{len(found)} {word}" for word, found in parts.items()]
    named = [f"{word}: {', '.join(map(code, found))}" for word, found in parts.items() if found]
    return f"Against {code(compared.report)}: {', '.join(counted)}." + (f"\n\n{_bulleted(named)}" if named else "")


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    identity: Mapping[str, Any] = report.subject.get("identity", {})
    words = {"command": report.command, "seconds": f"{report.seconds:.1f}", **report.environment}
    words |= {"options": " ".join(report.subject.get("options", ())), "dtype": report.subject.get("dtype", "")}
    words |= {key.replace("_", " "): value for key, value in identity.items()}
    for key, value in words.items():
        if isinstance(value, (str, int, float)) and value != "":
            yield text(str(key)), code(scalar(value))


def _bulleted(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    return "\n".join(f"- {line}" for line in (*lines[:_MOST_LINES], *more))


def _tabled(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows[:_MOST_ROWS]]
    more = [f"\nand {len(rows) - _MOST_ROWS} more"] if len(rows) > _MOST_ROWS else []
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), *more])


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
