"""Tells each cause once: findings in order of importance, each with the other checks that saw the same."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nsa_doctor.core import registry
from nsa_doctor.core.check import usual_priority
from nsa_doctor.core.facts import Fact
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.core.registry import Entry

_NO_ANSWER = ("timeout", "died")  # kinds of evidence
_SYMPTOMS = {  # by the scale of priorities in check.py
    range(200, 300): "wrong values",  # overwritten or kept ones; what raises has a kind of its own
    range(300, 400): "not finite",
    range(400, 700): "wrong values",
    range(700, 780): "cost",
}


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
    """The result with those of its findings that are reported, in the words of whoever reports them."""
    own = tuple(finding for finding in kept if finding.code == result.code)
    if own or not result.findings:
        return replace(result, findings=own)
    by = next((finding.code for finding in kept if result.code in finding.also), "")
    if all(_has_no_answer(finding) for finding in result.findings):  # of this very check nothing was learnt
        reason = f"means nothing while {by} fails: a call it makes ends in the same place"
        return replace(result, verdict=Verdict.SKIP, findings=(), reason=reason)
    return replace(result, findings=(), reason=f"seen beside {by}, which may explain it")


def _explains(other: Finding, finding: Finding, entries: Mapping[str, Entry]) -> bool:
    """Whether both have one cause: by what was seen, and never by the place alone."""
    if finding.code != other.code and _has_no_answer(finding) and _has_no_answer(other) and _is_one_end(other, finding):
        return True
    if other.code in entries and finding.evidence.get("error") in entries[other.code].explains:
        return True  # it names the line at fault, wherever torch gave up
    here, there = finding.where, other.where
    is_alike = _symptom(finding, entries) == _symptom(other, entries)
    is_at_one_line = bool(here.file) and (here.file, here.line) == (there.file, there.line)
    if is_alike and finding.code != other.code and (is_at_one_line or _grew_at_one_line(other, finding)):
        return True
    explained_by = entries[finding.code].explained_by if finding.code in entries else ()
    if not other.code.startswith(explained_by) or not (is_alike or _was_seen_where(finding, other)):
        return False
    return _is_inside(here.module, there.module) or _is_inside(there.module, here.module)


def _symptom(finding: Finding, entries: Mapping[str, Entry]) -> str:
    """What kind of thing was seen: two kinds on one line are two faults. Of an unknown kind, its code."""
    kind = finding.evidence.get("kind")
    if kind in ("raised", "wrong_shape", "not finite", *_NO_ANSWER):
        return str(kind)
    priority = _priority(finding.code, entries)
    return next((symptom for limits, symptom in _SYMPTOMS.items() if priority in limits), finding.code)


def _grew_at_one_line(other: Finding, finding: Finding) -> bool:
    """Whether values that left their dtype's range in either grew to its end at the same line."""
    return finding.evidence.get("grown_at", "") == other.evidence.get("grown_at") != ""


def _was_seen_where(finding: Finding, other: Finding) -> bool:
    """Whether the other, of which a sweep listed all lengths that show it, was seen at this finding's."""
    listed = str(other.evidence.get("lengths", "")).split(",")
    if "call" in other.evidence or not all(length.isdigit() for length in listed):
        return True  # it is known of one length alone, and not of which others
    own = str(finding.evidence.get("length", finding.evidence.get("lengths", ""))).split(",")
    return not all(length.isdigit() for length in own) or set(own) <= set(listed)


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
