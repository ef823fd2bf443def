"""Every check's end in a few lines: one per family, then what was not checked and why."""

from collections import Counter
from collections.abc import Iterator, Sequence

from nsa_doctor.core.families import FAMILIES, in_order, is_code
from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.core.seams import parts_not_offered
from nsa_doctor.core.text import joined

_MOST_CODES = 4
_MOST_PARTS = 3


def overview(report: Report) -> Iterator[str]:
    """`FWD forward: 9 pass, 1 FAIL` and the codes that failed, for each family of which anything applies."""
    applying = [result for result in report.results if is_code(result.code) and not is_idle(result)]
    for family in in_order(result.code[:3] for result in applying):
        own = [result for result in applying if result.code.startswith(family)]
        yield f"{family}  {FAMILIES.get(family, ''):<24} {', '.join(_counts(own))}"


def not_checked(report: Report) -> Iterator[str]:
    """What was not checked, by reason: first what is missing, then what does not apply to the subject."""
    for codes, reason in missing(report):
        yield f"not checked: {codes}: {reason}"
    idle = [result for result in report.results if is_idle(result)]
    if idle:
        families = in_order(result.code[:3] for result in idle)
        counted = [f"{sum(result.code.startswith(family) for result in idle)} {family}" for family in families]
        yield f"does not apply: {joined(counted)}, for parts it does not offer ({_parts(idle)})"


def missing(report: Report) -> Iterator[tuple[str, str]]:
    """(codes, reason) for what was not checked though it applies."""
    unknown = [r for r in report.results if r.verdict in (Verdict.SKIP, Verdict.CRASH) and not is_idle(r)]
    for reason in dict.fromkeys(result.reason for result in unknown):
        yield _some([result.code for result in unknown if result.reason == reason]), reason


def is_idle(result: Result) -> bool:
    """Whether the check is about something that the subject does not have."""
    return result.verdict is Verdict.SKIP and not result.is_required


def _parts(idle: Sequence[Result]) -> str:
    """The parts that most of the checks miss, and where all of them are named."""
    counts = Counter(part for result in idle for part in parts_not_offered(result.reason))
    words = [f"no {part}" for part, _ in counts.most_common(_MOST_PARTS)]
    more = ["…"] if len(counts) > _MOST_PARTS else []
    named = f"{', '.join(words + more)}; " if words else ""
    return f"{named}a report as json {'names all' if words else 'says which'}"


def _counts(results: Sequence[Result]) -> Iterator[str]:
    for verdict in Verdict:
        codes = [result.code for result in results if result.verdict is verdict]
        if codes:
            word = verdict.value if verdict is not Verdict.PASS else "pass"
            yield f"{len(codes)} {word}" + ("" if verdict is Verdict.PASS else f" ({_some(codes)})")


def _some(codes: Sequence[str]) -> str:
    """The codes; of more than four in a family the first, the last and how many."""
    words = []
    for family in dict.fromkeys(code[:3] for code in codes):
        own = sorted(code for code in codes if code.startswith(family))
        words += own if len(own) <= _MOST_CODES else [f"{own[0]} to {own[-1]} ({len(own)})"]
    return joined(words)
