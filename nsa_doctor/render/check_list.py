"""How every check ended, as a page tells it: counted, by family, and what was not checked by reason."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nsa_doctor.core.families import FAMILIES, family_of, in_order
from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.core.policy_verdict import LimitStatus
from nsa_doctor.core.text import counted
from nsa_doctor.render.summary import num_failed, ordered_findings

_MOST_RESULTS = 1000


@dataclass(frozen=True)
class Count:
    """So many checks ended like this; `kind` is their class on the page."""

    kind: str
    word: str
    number: int


@dataclass(frozen=True)
class Family:
    """The checks of one family: (result, how it ended, its class on the page, number of its first card)."""

    code: str
    title: str
    counts: tuple[Count, ...]
    rows: tuple[tuple[Result, Count, int | None], ...]


@dataclass(frozen=True)
class Missing:
    """Checks that tell nothing, for one reason; those that do not apply stand in nobody's way."""

    reason: str
    codes: tuple[str, ...]
    word: str
    is_idle: bool


_ENDS: Mapping[Verdict, tuple[str, str]] = {
    Verdict.FAIL: ("fail", "failed"),
    Verdict.TIMEOUT: ("timeout", "timed out"),
    Verdict.CRASH: ("crash", "crashed"),
    Verdict.SKIP: ("skip", "not checked"),
    Verdict.PASS: ("pass", "passed"),
}
_LIMITS: Mapping[LimitStatus, tuple[str, str]] = {
    "broken": ("fail", "broken"),
    "not measured": ("skip", "not measured"),
    "kept": ("pass", "kept"),
}
_IDLE = ("idle", "not applicable")


def tally(report: Report) -> Iterator[Count]:
    """How many checks ended in each way, the gravest first; then how a policy's limits were kept."""
    yield from _counted(report.results)
    limits = report.verdict.limits if report.verdict is not None else ()
    for kept, (kind, word) in _LIMITS.items():
        number = sum(each.kept == kept for each in limits)
        if number:
            yield Count(kind, f"limit{'' if number == 1 else 's'} {word}", number)


def share_failed(report: Report) -> str:
    """How many of the checks that ran failed, in words; empty where none ran."""
    ran = sum(result.verdict in (Verdict.PASS, Verdict.FAIL, Verdict.TIMEOUT) for result in report.results)
    return (
        f"{num_failed(report) or 'none'} of {counted(ran, 'check')} that ran failed".capitalize() + "." if ran else ""
    )


def families(report: Report) -> Iterator[Family]:
    """Every check by family, in the order of families."""
    numbers: dict[str, int] = {}
    for number, (result, _) in enumerate(ordered_findings(report), start=1):
        numbers.setdefault(result.code, number)
    by_family: dict[str, list[Result]] = {}
    for result in report.results[:_MOST_RESULTS]:
        by_family.setdefault(family_of(result.code)[0], []).append(result)
    for code in in_order(by_family):
        results, title = by_family[code], FAMILIES.get(code, "")
        rows = [(result, _end(result), numbers.get(result.code)) for result in sorted(results, key=lambda r: r.code)]
        yield Family(code, title, tuple(_counted(results)), tuple(rows))


def missing(report: Report) -> Iterator[Missing]:
    """What was not checked and why: first what is missing, then what the subject does not offer."""
    reasons: dict[tuple[bool, str, str], list[str]] = {}
    for result in report.results:
        if result.verdict in (Verdict.SKIP, Verdict.CRASH):
            end = _end(result)
            reasons.setdefault((end.kind == "idle", end.word, result.reason), []).append(result.code)
    for required in report.verdict.required if report.verdict is not None else ():
        if required.verdict == "absent":
            reasons.setdefault((False, "not run", required.reason), []).append(required.code)
    for (is_idle, word, reason), codes in sorted(reasons.items(), key=lambda item: item[0][0]):
        yield Missing(reason or "no reason is known", tuple(codes[:_MOST_RESULTS]), word, is_idle)


def _end(result: Result) -> Count:
    is_idle = result.verdict is Verdict.SKIP and not result.is_required
    return Count(*(_IDLE if is_idle else _ENDS[result.verdict]), 1)


def _counted(results: Sequence[Result]) -> Iterator[Count]:
    ends = [_end(result) for result in results]
    for kind, word in (*_ENDS.values(), _IDLE):
        number = sum(end.kind == kind for end in ends)
        if number:
            yield Count(kind, word, number)
