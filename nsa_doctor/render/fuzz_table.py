"""What `nsa-doctor fuzz` tried, target by target."""

from collections.abc import Iterator

from nsa_doctor.core.finding import Report, Verdict


def fuzz_targets(report: Report) -> Iterator[str]:
    """`select   FAIL  57 inputs tried; 214 smaller ones`, for each target that was tried."""
    for result in report.results:
        if result.verdict is not Verdict.SKIP:
            word = "pass" if result.verdict is Verdict.PASS else result.verdict.value
            yield f"{result.name:<9}{word:<8} {'; '.join(result.notes)}".rstrip()


def fuzz_not_tried(report: Report) -> Iterator[str]:
    """`not tried: masks: the subject offers no masks`, for each target that tells nothing."""
    for result in report.results:
        if result.verdict is Verdict.SKIP:
            yield f"not tried: {result.name}: {result.reason}"
