"""Every check's end in a few lines: one per family, then what was not checked and why."""

from collections.abc import Iterator, Sequence

from nsa_doctor.finding import Report, Result, Verdict
from nsa_doctor.wording import joined

_MOST_CODES = 3
FAMILIES = {
    "ENV": "environment and routing",
    "FWD": "forward",
    "SEL": "selection",
    "GRD": "gradients",
    "NAN": "finite values",
    "GAT": "gates",
    "DEC": "decoding",
    "HNG": "hangs and waits",
    "PRF": "time and memory",
}


def overview(report: Report) -> Iterator[str]:
    """`FWD forward: 9 pass, 1 FAIL (FWD201)`, for each family of which anything applies."""
    for family, title in FAMILIES.items():
        applying = [result for result in report.results if result.code.startswith(family) and not _is_idle(result)]
        if applying:
            yield f"{family}  {title:<24} {', '.join(_counts(applying))}"


def not_checked(report: Report) -> Iterator[str]:
    """What was not checked, by reason: first what is missing, then what does not apply to the subject."""
    skipped = [result for result in report.results if result.verdict in (Verdict.SKIP, Verdict.CRASH)]
    missing = [result for result in skipped if not _is_idle(result)]
    for reason in dict.fromkeys(result.reason for result in missing):
        codes = [result.code for result in missing if result.reason == reason]
        yield f"not checked: {_some(codes)}: {reason}"
    idle = [result.code for result in skipped if _is_idle(result)]
    if idle:
        families = dict.fromkeys(code[:3] for code in idle)
        counted = [f"{sum(code.startswith(family) for code in idle)} {family}" for family in families]
        yield f"does not apply: {joined(counted)}, for parts it does not offer (--format json says which)"


def _counts(results: Sequence[Result]) -> Iterator[str]:
    for verdict in Verdict:
        codes = [result.code for result in results if result.verdict is verdict]
        if codes:
            word = verdict.value if verdict is not Verdict.PASS else "pass"
            yield f"{len(codes)} {word}" + ("" if verdict is Verdict.PASS else f" ({_some(codes)})")


def _some(codes: Sequence[str]) -> str:
    """The codes; of more than three in a family the first, the last and how many."""
    words = []
    for family in dict.fromkeys(code[:3] for code in codes):
        own = sorted(code for code in codes if code.startswith(family))
        words += own if len(own) <= _MOST_CODES else [f"{own[0]} to {own[-1]} ({len(own)})"]
    return joined(words)


def _is_idle(result: Result) -> bool:
    return result.verdict is Verdict.SKIP and not result.is_required
