"""Tells each cause once: findings in order of importance, each with the other checks that saw the same."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nsa_doctor.core import registry
from nsa_doctor.core.check import usual_priority
from nsa_doctor.core.facts import Fact
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.core.registry import Entry

_NO_ANSWER = ("timeout", "died")  # kinds of evidence


def deduplicate(results: Iterable[Result], entries: Mapping[str, Entry]) -> tuple[Result, ...]:
    """The results in order of importance; what an earlier finding explains is named there and dropped here.

    Findings are compared by what they carry: code, place, kind of end, kind of error; never by what they say.
    """
    ordered = sorted(results, key=lambda result: (_priority(result.code, entries), result.code))
    kept: list[Finding] = []
    findings = (finding for result in ordered for finding in result.findings)
    for finding in sorted(findings, key=lambda finding: _importance(finding, entries)):
        index = next((i for i, other in enumerate(kept) if _explains(other, finding, entries)), None)
        if index is None:
            kept.append(finding)
        elif finding.code not in (kept[index].code, *kept[index].also):
            kept[index] = replace(kept[index], also=(*kept[index].also, finding.code))
    return tuple(_with_own(result, kept) for result in ordered)


def _priority(code: str, entries: Mapping[str, Entry]) -> int:
    return entries[code].priority if code in entries else usual_priority(code)


def _importance(finding: Finding, entries: Mapping[str, Entry]) -> tuple[int, bool]:
    """Its check's priority; an exception that ended another check comes after the check that is about exceptions."""
    own = _priority(finding.code, entries)
    if finding.evidence.get("kind") != "raised":
        return own, False
    about_exceptions = registry.answering(Fact.RAISED)
    return max(own, about_exceptions.priority), finding.code != about_exceptions.manual.code


def _with_own(result: Result, kept: Sequence[Finding]) -> Result:
    """The result with those of its findings that are told, in the words of whoever tells them."""
    own = tuple(finding for finding in kept if finding.code == result.code)
    if own or not result.findings:
        return replace(result, findings=own)
    by = next((finding.code for finding in kept if result.code in finding.also), "")
    if all(_has_no_answer(finding) for finding in result.findings):  # of this very check nothing was learnt
        reason = f"means nothing while {by} fails: a call it makes ends in the same place"
        return replace(result, verdict=Verdict.SKIP, findings=(), reason=reason)
    return replace(result, findings=(), reason=f"seen beside {by}, which may explain it")


def _explains(other: Finding, finding: Finding, entries: Mapping[str, Entry]) -> bool:
    here, there = finding.where, other.where
    if here.file and (here.file, here.line) == (there.file, there.line) and finding.code != other.code:
        return True
    if finding.code != other.code and _has_no_answer(finding) and _has_no_answer(other) and _is_one_end(other, finding):
        return True
    if other.code in entries and finding.evidence.get("error") in entries[other.code].explains:
        return True  # it names the line at fault, wherever torch gave up
    explained_by = entries[finding.code].explained_by if finding.code in entries else ()
    if not other.code.startswith(explained_by):
        return False
    return _is_inside(here.module, there.module) or _is_inside(there.module, here.module)


def _has_no_answer(finding: Finding) -> bool:
    """Whether it says that a call did not come back."""
    return finding.evidence.get("kind") in _NO_ANSWER


def _is_one_end(other: Finding, finding: Finding) -> bool:
    """Whether two calls stopped in one function, or, where no line is known of either, in one way."""
    here, there = finding.where, other.where
    if here.file or there.file:
        return (here.file, here.function) == (there.file, there.function)
    return finding.evidence["kind"] == other.evidence["kind"]


def _is_inside(inner: str, outer: str) -> bool:
    return not outer or inner == outer or inner.startswith(f"{outer}.")
