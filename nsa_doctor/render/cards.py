"""Findings as a page tells them: one card each, with the source around its place and what its check's manual says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nsa_doctor.core import registry
from nsa_doctor.core.check import Manual
from nsa_doctor.core.documentation import address_of
from nsa_doctor.core.finding import Finding, Report, Result
from nsa_doctor.render.excerpt import SourceLine, Sources
from nsa_doctor.render.repository_paths import in_repository
from nsa_doctor.render.summary import acceptances, long_evidence, measured, ordered_findings

_MOST_CARDS, _MOST_TRACEBACKS = 200, 10


@dataclass(frozen=True, kw_only=True)
class Card:
    """One finding; `number` counts from 1, `also` are other checks that saw it: (code, name).

    `address` is that of the check's page, empty where there is none.
    """

    number: int
    finding: Finding
    verdict: str
    name: str
    manual: Manual | None
    address: str
    where: str
    source: tuple[SourceLine, ...]
    measured: tuple[tuple[str, str], ...]
    long_evidence: tuple[tuple[str, str], ...]
    also: tuple[tuple[str, str], ...]
    accepted: str


@dataclass(frozen=True)
class Cards:
    """The cards that a page has room for, and how many more findings there are."""

    shown: Sequence[Card]
    left_out: int


def cards(report: Report, *, excerpts: bool) -> Cards:
    """One card for each finding, those that may stay last."""
    pairs = list(ordered_findings(report))
    repository = report.environment.get("repository")
    sources = Sources(repository if isinstance(repository, str) else "") if excerpts else None
    shown = list(_cards(report, pairs[:_MOST_CARDS], sources))
    return Cards(shown, len(pairs) - len(shown))


def tracebacks(report: Report) -> Iterator[tuple[str, str]]:
    """(where it was seen first, text) of each traceback of the subject's."""
    seen: set[str] = set()
    for each in report.measurements:
        trouble, point = each.trouble, each.point
        if trouble is not None and trouble.traceback not in ("", *seen) and len(seen) < _MOST_TRACEBACKS:
            seen.add(trouble.traceback)
            yield f"Traceback at S={point.length} in {point.dtype} ({point.mode})", trouble.traceback


def _cards(report: Report, pairs: Sequence[tuple[Result, Finding]], sources: Sources | None) -> Iterator[Card]:
    manuals = registry.manuals()
    known = acceptances(report)
    for number, (result, finding) in enumerate(pairs, start=1):
        manual = manuals.get(finding.code)
        place = finding.where
        file = in_repository(place.file, report) or place.file if place.file else ""
        yield Card(
            number=number,
            finding=finding,
            verdict=result.verdict.value,
            name=manual.name if manual else result.name,
            manual=manual,
            address=address_of(finding.code),
            where=f"{file}:{place.line}" if file and place.line > 0 else file,
            source=sources.excerpt(place) if sources is not None else (),
            measured=tuple(measured(finding)),
            long_evidence=tuple(long_evidence(finding)),
            also=tuple((code, manuals[code].name if code in manuals else "") for code in finding.also),
            accepted=known.get(finding.fingerprint, ""),
        )
