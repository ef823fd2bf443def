"""Every check's end in a few lines: one per family, then what was not checked and why."""

from collections.abc import Iterator, Sequence

from nsa_doctor.finding import Report, Result, Verdict
from nsa_doctor.wording import joined

_MOST_CODES = 6
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
    for title, results in (
        ("not checked", [result for result in skipped if not _is_idle(result)]),
        ("does not apply", [result for result in skipped if _is_idle(result)]),
    ):
        reasons = dict.fromkeys(result.reason for result in results)
        for reason in reasons:
            codes = [result.code for result in results if result.reason == reason]
            yield f"{title}: {_some(codes)}: {reason}"


def _counts(results: Sequence[Result]) -> Iterator[str]:
    for verdict in Verdict:
        codes = [result.code for result in results if result.verdict is verdict]
        if codes:
            word = verdict.value if verdict is not Verdict.PASS else "pass"
            yield f"{len(codes)} {word}" + ("" if verdict is Verdict.PASS else f" ({_some(codes)})")


def _some(codes: Sequence[str]) -> str:
    shown = list(codes[:_MOST_CODES])
    more = len(codes) - len(shown)
    return joined([*shown, *([f"{more} more"] if more else [])])


def _is_idle(result: Result) -> bool:
    return result.verdict is Verdict.SKIP and not result.is_required
