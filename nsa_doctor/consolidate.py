"""Tells each cause once: findings in order of importance, each with the other checks that saw the same."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nsa_doctor.families import FAMILIES
from nsa_doctor.finding import Finding, Result, Verdict
from nsa_doctor.registry import Entry

# What has to be mended first comes first: what ends the run, what poisons every value, then ever finer differences.
_URGENT = (
    *("CKP102", "CKP", "ENV", "HNG101", "GRD401", "GRD402", "GRD403", "FWD101", "FWD102", "NAN"),
    *("FWD206", "FWD208", "FWD207", "FWD203", "FWD204", "FWD205", "FWD201", "FWD202", "SEL", "FWD"),
    *("GRD", "GAT", "DEC", "HNG", "PRF", "DAT"),
    # Of a run: what ended it or stands still, then causes before what follows from them.
    *("DST103", "TRN1", "TRN201", "TRN301", "TRN302", "TRN204", "TRN304", "TRN203", "TRN303", "TRN202"),
    *("DST", "TRN5", "TRN402", "TRN403", "TRN4", "TRN"),
)
_ORDER = (*_URGENT, *(family for family in FAMILIES if family not in _URGENT))

_REFUSED = "modified by an inplace operation"
_SECOND_TIME = "backward through the graph a second time"
_NO_ANSWER = ("timeout", "died")  # kinds of evidence


def consolidated(results: Iterable[Result], entries: Mapping[str, Entry]) -> tuple[Result, ...]:
    """The results in order of importance; what an earlier finding explains is named there and dropped here."""
    ordered = sorted(results, key=lambda result: (rank(result.code), result.code))
    kept: list[Finding] = []
    for result in ordered:
        for finding in result.findings:
            explained_by = entries[result.code].explained_by if result.code in entries else ()
            index = next((i for i, other in enumerate(kept) if _explains(other, finding, explained_by)), None)
            if index is None:
                kept.append(finding)
            elif finding.code not in (kept[index].code, *kept[index].also):
                kept[index] = replace(kept[index], also=(*kept[index].also, finding.code))
    return tuple(_with_own(result, kept) for result in ordered)


def rank(code: str) -> int:
    """How early a check's findings are told; the longest matching entry counts."""
    fitting = [prefix for prefix in _ORDER if code.startswith(prefix)]
    return _ORDER.index(max(fitting, key=len)) if fitting else len(_ORDER)


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


def _explains(other: Finding, finding: Finding, explained_by: Sequence[str]) -> bool:
    here, there = finding.where, other.where
    if here.file and (here.file, here.line) == (there.file, there.line) and finding.code != other.code:
        return True
    if finding.code != other.code and _has_no_answer(finding) and _has_no_answer(other) and _is_one_end(other, finding):
        return True
    if other.code == "GRD401" and _REFUSED in finding.message:  # it names the write, wherever backward gave up
        return True
    if other.code == "GRD403" and _SECOND_TIME in finding.message:  # and it names what led into the graph
        return True
    if not any(other.code.startswith(code) for code in explained_by):
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
