"""What a sweep, and what calls of checks showed beside it, conclude check by check."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from nsa_doctor.core import registry
from nsa_doctor.core.facts import SWEPT
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.core.measurement import Point, Trouble
from nsa_doctor.core.registry import Entry
from nsa_doctor.core.text import numbers
from nsa_doctor.core.torch_errors import TorchError, error_kind
from nsa_doctor.engine.measure_points import Examination
from nsa_doctor.engine.root_causes import TROUBLE_FACTS


def is_swept(entry: Entry) -> bool:
    """Whether a sweep answers the check, so that it need not be run."""
    return any(fact in SWEPT for fact in entry.answers)


def swept_codes() -> frozenset[str]:
    """The codes of all checks that a sweep answers."""
    return frozenset(code for code, entry in registry.entries().items() if is_swept(entry))


def swept_results(
    found: Sequence[Finding],
    examination: Examination,
    planned: Sequence[Point],
    is_answered: Callable[[Entry], bool],
) -> tuple[Result, ...]:
    """One result per check that a sweep answers; what could not be measured leaves them skipped, not passed."""
    reason = _missing(examination, planned)
    results = []
    for code, entry in registry.entries().items():
        own = tuple(finding for finding in found if finding.code == code)
        if not is_swept(entry) or (not own and not is_answered(entry)):
            continue
        verdict = Verdict.SKIP if reason else Verdict.PASS
        if own:
            hangs = any(finding.evidence.get("kind") == "timeout" for finding in own)
            verdict = Verdict.TIMEOUT if hangs else Verdict.FAIL
        ended = Result(code=code, name=entry.manual.name, verdict=verdict, findings=own)
        results.append(ended if own else replace(ended, reason=reason))
    return tuple(results)


def with_observed(results: Iterable[Result], observed: Iterable[Finding]) -> tuple[Result, ...]:
    """The results, and in them what calls of other checks showed: each finding fails the check whose code it bears."""
    ended = {result.code: result for result in results}
    for finding in observed:
        unasked = Result(code=finding.code, name=registry.manual(finding.code).name, verdict=Verdict.FAIL)
        ended[finding.code] = _joined(ended.get(finding.code, unasked), finding)
    return tuple(ended.values())


def _joined(result: Result, finding: Finding) -> Result:
    if any(_is_same(finding, known) for known in result.findings):
        return result
    grown = result.with_findings((*result.findings, finding))
    verdict = result.verdict if result.verdict is Verdict.TIMEOUT else Verdict.FAIL
    return replace(grown, verdict=verdict, reason="", is_required=True, further=(*result.further, *grown.further))


def _is_same(finding: Finding, known: Finding) -> bool:
    """Whether they were seen at one line, or grew at one; of what has no line, whether they are in one module."""
    if (grown := finding.evidence.get("grown_at")) is not None and grown == known.evidence.get("grown_at"):
        return True
    here, there = finding.where, known.where
    if here.file or there.file:
        return (here.file, here.line) == (there.file, there.line)
    return (here.module, here.module_class) == (there.module, there.module_class)


def _missing(examination: Examination, planned: Sequence[Point]) -> str:
    """Which points were not measured and why; nothing when all were, but for those at which a norm has one value."""
    measured = {m.point for m in examination.measurements if m.trouble is None}
    answered = {m.point for m in examination.measurements if m.trouble is not None and m.trouble.kind in TROUBLE_FACTS}
    of_one_value = {m.point for m in examination.measurements if m.trouble and _is_of_one_value(m.trouble)}
    missing = [point for point in planned if point not in measured | answered | of_one_value]
    if not missing and (measured or answered):
        return ""
    why = {m.trouble.message for m in examination.measurements if m.trouble and m.trouble.kind not in TROUBLE_FACTS}
    reason = f"not measured at S={numbers({point.length for point in missing})}" if missing else "nothing measured"
    return reason + (f": {'; '.join(sorted(why))}" if why else "")


def _is_of_one_value(trouble: Trouble) -> bool:
    """Whether a batch norm was given one token in training, which it refuses, and which nobody trains on."""
    return error_kind(trouble.message) is TorchError.ONE_VALUE_PER_CHANNEL
