"""Why a report decides as it does, in a few sentences a reader can follow to their evidence."""

from collections.abc import Iterator
from dataclasses import dataclass

from nsa_doctor.core.finding import Decision, Report, Verdict
from nsa_doctor.render.html_text import short
from nsa_doctor.render.overview import not_checked
from nsa_doctor.render.summary import conclusion, ordered_findings

_MOST_REASONS = 12


@dataclass(frozen=True)
class Reason:
    """One sentence, and the number of the card it is about, if there is one."""

    text: str
    card: int | None = None
    code: str = ""


def lead(report: Report) -> str:
    """One sentence below the verdict."""
    if report.verdict is not None:
        return f"By the policy {short(report.verdict.gate)}."
    match report.decision:
        case Decision.NO_GO:
            count = report.num_findings
            if not count:
                return "A check did not end as it should."
            return "At least one thing is wrong." if count == 1 else f"At least {count} things are wrong."
        case Decision.UNKNOWN:
            return "Nothing wrong was seen, but not everything was looked at."
        case Decision.GO:
            return "Nothing wrong was seen, and nothing that was asked for is missing."


def reasons(report: Report) -> Iterator[Reason]:
    """What speaks against a GO, the gravest first, or what speaks for it."""
    if report.interrupted:
        yield Reason("The examination was interrupted: only what was measured until then stands here.")
    if report.verdict is not None:
        yield from _ruled(report)
        return
    pairs = list(ordered_findings(report))
    for number, (_, finding) in enumerate(pairs[:_MOST_REASONS], start=1):
        yield Reason(finding.message, number, finding.code)
    if len(pairs) > _MOST_REASONS:
        yield Reason(f"and {len(pairs) - _MOST_REASONS} more findings")
    explained = {code for _, finding in pairs for code in (finding.code, *finding.also)}
    for result in report.results:
        if result.verdict in (Verdict.FAIL, Verdict.TIMEOUT) and not result.findings and result.code not in explained:
            yield Reason(f"ended {result.verdict.value}: {result.reason or 'no finding says why'}", code=result.code)
    if report.decision is Decision.GO:
        yield Reason(conclusion(report))
    elif report.decision is Decision.UNKNOWN:
        lines = list(not_checked(report))
        yield from map(Reason, lines or ["nothing was examined"])


def _ruled(report: Report) -> Iterator[Reason]:
    """The policy's own sentences; one that begins like a finding leads to its card."""
    assert report.verdict is not None
    pairs = list(ordered_findings(report))
    for sentence in report.verdict.why:
        starts = (
            number
            for number, (_, finding) in enumerate(pairs, start=1)
            if sentence.startswith(f"{finding.code} {finding.message}")
        )
        number = next(starts, None)
        code = pairs[number - 1][1].code if number is not None else ""
        yield Reason(sentence.removeprefix(f"{code} ") if code else sentence, number, code)
