"""A report and a policy to a decision: NO-GO for what failed, UNKNOWN for what is missing, GO for a full pass alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nsa_doctor.core.finding import Finding, Report, Result, Verdict
from nsa_doctor.core.measures import MEASURES
from nsa_doctor.core.policy_verdict import Accepted, Compared, LimitResult, LimitStatus, PolicyVerdict, Required
from nsa_doctor.core.registry import Entry, entries
from nsa_doctor.core.text import counted, plain_number
from nsa_doctor.policy.policy import Limit, Policy, Requirement

Stands = Literal["passed", "accepted", "not offered", "failed", "unknown"]
_MOST_NAMED = 12


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the policy is applied to beside the report.

    `measured` are a run's numbers, None where no run was given; `mismatches` say in a sentence each what was gathered
    on another subject; `missing` why checks were not run, by code; `obstacles` are the codes of failures that count
    though the policy does not require them, for they kept every call from an answer; `baseline` compares with an
    earlier report, whose findings may stay for the reason `baseline_because`, if there is one.
    """

    measured: Mapping[str, float | None] | None = None
    device_name: str = ""
    mismatches: tuple[str, ...] = ()
    missing: Mapping[str, str] | None = None
    obstacles: tuple[str, ...] = ()
    baseline: Compared | None = None
    baseline_because: str = ""
    again: str = ""


def decide(report: Report, policy: Policy, evidence: Evidence) -> PolicyVerdict:
    """The ruling, with every reason for it."""
    accepted = {each.fingerprint: each for each in _accepted(report, policy, evidence)}
    results = {result.code: result for result in report.results}
    declared, known, findings = set(report.subject.get("spec", ())), entries(), report.findings
    required = tuple(
        _required(code, requirement, results.get(code), _own(code, findings), accepted, evidence)
        for code in policy.codes
        if (requirement := _requirement(policy, known[code], declared)) is not None
    )
    limits = tuple(_held(limit, evidence) for limit in policy.limits)
    against = [*_failures(required, results, accepted, evidence.obstacles), *_broken(limits)]
    unknown = [*evidence.mismatches, *_unknowns(required), *_not_measured(limits)]
    if report.interrupted:
        unknown.append("the examination was interrupted")
    if not any(each.stands in ("passed", "accepted", "failed") for each in required) and not limits:
        unknown.append("nothing that the policy requires was examined")
    why = against + unknown if against or unknown else _all_well(required, limits, accepted)
    return PolicyVerdict(
        decision="NO-GO" if against else ("UNKNOWN" if unknown else "GO"),
        gate=policy.name,
        gate_digest=policy.digest,
        why=tuple(why),
        required=required,
        limits=limits,
        accepted=tuple(accepted.values()),
        baseline=evidence.baseline,
        again=evidence.again,
    )


def _requirement(policy: Policy, entry: Entry, declared: set[str]) -> Requirement | None:
    """What requires the check; where it applies, if what the subject is declared to be means what it looks for."""
    requirement = policy.requirement(entry.manual.code)
    if requirement is None or not declared.intersection(entry.unless):
        return requirement
    return requirement.model_copy(update={"where_offered": True})


def _accepted(report: Report, policy: Policy, evidence: Evidence) -> Iterable[Accepted]:
    """Findings that may stay: named by the policy with a reason, or known from an accepted report."""
    reasons = {each.fingerprint: each.because for each in policy.accept}
    if evidence.baseline is not None and evidence.baseline_because:
        reasons = {**dict.fromkeys(evidence.baseline.unchanged, evidence.baseline_because), **reasons}
    found = [(finding.fingerprint, finding.code) for finding in report.findings]
    found += [(fingerprint, result.code) for result in report.results for fingerprint in result.further]
    for fingerprint, code in found:
        if fingerprint in reasons:
            yield Accepted(fingerprint=fingerprint, code=code, because=reasons[fingerprint])


def _required(
    code: str,
    requirement: Requirement,
    result: Result | None,
    findings: Sequence[Finding],
    accepted: Mapping[str, Accepted],
    evidence: Evidence,
) -> Required:
    stands: Stands
    if result is None:
        missing = (evidence.missing or {}).get(code, "")
        stands = "not offered" if missing and requirement.where_offered else "unknown"
        verdict, reason = "absent", missing or "it was not run"
    else:
        are_accepted = _are_accepted(findings, accepted) and not _further(result, accepted)
        stands = _stands(requirement, result, are_accepted)
        verdict, reason = result.verdict.value, "" if stands == "passed" else result.reason
    return Required(code=code, verdict=verdict, because=requirement.because, stands=stands, reason=reason)


def _stands(requirement: Requirement, result: Result, are_accepted: bool) -> Stands:
    if result.verdict is Verdict.PASS:
        return "passed"
    if result.verdict in (Verdict.FAIL, Verdict.TIMEOUT):
        return "accepted" if are_accepted else "failed"
    if result.verdict is Verdict.SKIP and not result.is_required and requirement.where_offered:
        return "not offered"
    return "unknown"


def _are_accepted(findings: Sequence[Finding], accepted: Mapping[str, Accepted]) -> bool:
    return bool(findings) and all(finding.fingerprint in accepted for finding in findings)


def _own(code: str, findings: Iterable[Finding]) -> list[Finding]:
    """A check's findings, and those that are reported in its place."""
    return [finding for finding in findings if code in (finding.code, *finding.also)]


def _failures(
    required: Sequence[Required],
    results: Mapping[str, Result],
    accepted: Mapping[str, Accepted],
    obstacles: Iterable[str],
) -> Iterable[str]:
    """One line per cause: what a finding explains is reported there, unless that finding may stay."""
    failed = {each.code for each in required if each.stands == "failed"}
    failed |= {code for code in obstacles if not _are_accepted(results[code].findings, accepted)}
    named: set[str] = set()
    findings = [finding for result in results.values() for finding in result.findings]
    for finding in findings:
        codes = {finding.code, *finding.also} & failed
        if codes and finding.fingerprint not in accepted:
            named |= codes
            yield _sentence(finding, codes)
    for code, further in {code: _further(results[code], accepted) for code in sorted(failed)}.items():
        if further:
            named.add(code)
            yield f"{code}: and {len(further)} more of the same check"
    for code in sorted(failed - named):
        yield f"{code} ended {results[code].verdict.value}: {results[code].reason or 'no finding says why'}"


def _further(result: Result, accepted: Mapping[str, Accepted]) -> list[str]:
    """Findings that are counted alone, and that may not stay."""
    return [fingerprint for fingerprint in result.further if fingerprint not in accepted]


def _sentence(finding: Finding, codes: set[str]) -> str:
    place = f" ({finding.where})" if finding.where.module_text or finding.where.file else ""
    seen_by = "" if finding.code in codes else f" (seen by {', '.join(sorted(codes))})"
    return f"{finding.code} {finding.message}{place}{seen_by}"


def _unknowns(required: Sequence[Required]) -> Iterable[str]:
    """One line per reason."""
    open_ones = [each for each in required if each.stands == "unknown"]
    for verdict, reason in dict.fromkeys((each.verdict, each.reason) for each in open_ones):
        codes = [each.code for each in open_ones if (each.verdict, each.reason) == (verdict, reason)]
        named = ", ".join(codes[:_MOST_NAMED]) + (
            f" and {len(codes) - _MOST_NAMED} more" if codes[_MOST_NAMED:] else ""
        )
        ended = "not checked" if verdict in ("SKIP", "absent") else verdict
        yield f"{named}: {ended}: {reason or 'no reason is known'}"


def _held(limit: Limit, evidence: Evidence) -> LimitResult:
    measure = MEASURES[limit.measure]
    value = (evidence.measured or {}).get(limit.measure)
    kept: LimitStatus
    if evidence.measured is not None and limit.device.lower() not in evidence.device_name.lower():
        kept = "other device"
    elif value is None:
        kept = "not measured"
    else:
        kept = "kept" if limit.keeps(value) else "broken"
    return LimitResult(
        measure=limit.measure,
        title=measure.title,
        unit=measure.unit,
        bound=f"{'at least' if limit.at_least is not None else 'at most'} {plain_number(limit.bound)}",
        measured=value,
        kept=kept,
        because=limit.because,
        device=limit.device,
    )


def _broken(limits: Sequence[LimitResult]) -> Iterable[str]:
    for each in limits:
        if each.kept == "broken" and each.measured is not None:
            unit = f" {each.unit}" if each.unit else ""
            yield f"{each.title}: {plain_number(each.measured)}{unit}, must be {each.bound} ({each.because})"


def _not_measured(limits: Sequence[LimitResult]) -> Iterable[str]:
    """What was not measured, and what has limits on other devices alone."""
    for each in limits:
        if each.kept == "not measured":
            yield f"{each.title}: not measured; the run shows none (--run names its folder)"
    for measure in dict.fromkeys(each.measure for each in limits):
        own = [each for each in limits if each.measure == measure]
        if all(each.kept == "other device" for each in own):
            yield f"{own[0].title}: the policy has limits for other devices alone: {', '.join(e.device for e in own)}"


def _all_well(
    required: Sequence[Required], limits: Sequence[LimitResult], accepted: Mapping[str, Accepted]
) -> list[str]:
    passed = sum(each.stands == "passed" for each in required)
    kept = sum(each.kept == "kept" for each in limits)
    known = [each.code for each in accepted.values()]
    said = [f"{counted(passed, 'required check')} passed"] if passed else []
    said += [f"{counted(kept, 'limit')} kept"] if kept else []
    return said + ([f"{counted(len(known), 'known finding')} accepted: {', '.join(known)}"] if known else [])
