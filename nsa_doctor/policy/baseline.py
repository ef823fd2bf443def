"""A report against an earlier one: which findings are new, which are gone, which are still there."""

from collections.abc import Iterator

from nsa_doctor.core.finding import Report, Result
from nsa_doctor.core.policy_verdict import Compared


def compare(report: Report, earlier: Report, name: str) -> Compared:
    """By fingerprint, which survives another seed, another machine and shifted lines.

    Fixed is only what a check that ended says nothing of any more; what was not looked at again is not fixed.
    """
    now, then = _fingerprints(report), _fingerprints(earlier)
    looked_at = {result.code for result in report.results if result.verdict in ("PASS", "FAIL")}
    codes = {fingerprint: result.code for result in earlier.results for fingerprint in _fingerprints_of(result)}
    return Compared(
        report=name,
        new=tuple(each for each in now if each not in then),
        fixed=tuple(each for each in then if each not in now and codes[each] in looked_at),
        unchanged=tuple(each for each in now if each in then),
    )


def mismatch(report: Report, earlier: Report, name: str) -> Iterator[str]:
    """A sentence where the earlier report is about another subject, whose findings say nothing about this one."""
    now, then = report.subject.get("name"), earlier.subject.get("name")
    if now != then:
        yield f"the baseline {name} is a report on {then}; examined is {now}"
    own, other = (", ".join(each.subject.get("spec", ())) or "nothing" for each in (report, earlier))
    if own != other:
        yield f"the baseline {name} is of a subject declared {other}; examined is one declared {own}"


def _fingerprints(report: Report) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for result in report.results for each in _fingerprints_of(result)))


def _fingerprints_of(result: Result) -> tuple[str, ...]:
    return (*(finding.fingerprint for finding in result.findings), *result.further)
