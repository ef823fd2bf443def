"""A ruling in full: what every required check and every limit stands at, and each sentence that says why."""

from dataclasses import replace

import pytest

from nsa_doctor.core.finding import Finding, Report, Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.policy_verdict import Accepted, Compared, LimitResult, PolicyVerdict, Required
from nsa_doctor.policy.policy import Policy
from nsa_doctor.policy.verdict import Evidence, decide

LEAK = Finding(code="FWD201", message="row 3 changes", where=Place(module="mixer", file="/a/mixer.py", line=12))
FLAG = Finding(code="FWD202", message="prefix changes")
NONE_EXAMINED = "nothing that the policy requires was examined"
FAST = {"measure": "tokens_per_second", "at_least": 1500, "because": "report 003"}
FEW = {"measure": "nonfinite_losses", "at_most": 2, "because": "a few are skipped"}


def gate(*codes: str, where_offered: bool = False, **parts) -> Policy:
    asked = {"codes": list(codes), "because": "they matter", "where_offered": where_offered}
    return Policy(**{"name": "test", "digest": "ab" * 32, "require": [asked] if codes else [], **parts})


def result(code: str, verdict: Verdict = Verdict.PASS, *findings: Finding, **parts) -> Result:
    return Result(code=code, name="some-name", verdict=verdict, findings=findings, **parts)


def ruled(asked: Policy, *results: Result, evidence: Evidence | None = None, **parts) -> PolicyVerdict:
    report = Report(command="run", subject={"name": "x"}, options={}, environment={}, results=results, **parts)
    return decide(report, asked, evidence or Evidence())


def required(code: str, verdict: str, stands: str, reason: str = "") -> Required:
    return Required(code=code, verdict=verdict, because="they matter", stands=stands, reason=reason)


def test_a_go_says_everything_it_rests_on() -> None:
    asked = gate("FWD101", "FWD201", "FWD202", limits=[FAST, FEW])
    asked = asked.model_copy(update={"accept": gate("FWD101", accept=[accepts(LEAK), accepts(FLAG)]).accept})
    known = Compared(report="old.json", unchanged=(FLAG.fingerprint,))
    evidence = Evidence(measured={"tokens_per_second": 1600.0, "nonfinite_losses": 0}, baseline=known, again="again x")
    results = (result("FWD101", reason="explained"), failed("FWD201", LEAK), failed("FWD202", FLAG))
    assert ruled(asked, *results, evidence=evidence) == PolicyVerdict(
        decision="GO",
        gate="test",
        gate_digest="ab" * 32,
        why=("1 required check passed", "2 limits kept", "2 known findings accepted: FWD201, FWD202"),
        required=(
            required("FWD101", "PASS", "passed"),
            required("FWD201", "FAIL", "accepted"),
            required("FWD202", "FAIL", "accepted"),
        ),
        limits=(
            LimitResult(
                measure="tokens_per_second",
                title="speed, median after the first tenth",
                unit="tokens/s",
                bound="at least 1,500",
                measured=1600.0,
                kept="kept",
                because="report 003",
            ),
            LimitResult(
                measure="nonfinite_losses",
                title="losses that are not finite",
                unit="",
                bound="at most 2",
                measured=0,
                kept="kept",
                because="a few are skipped",
            ),
        ),
        accepted=(
            Accepted(fingerprint=LEAK.fingerprint, code="FWD201", because="on purpose"),
            Accepted(fingerprint=FLAG.fingerprint, code="FWD202", because="on purpose"),
        ),
        baseline=known,
        again="again x",
    )


def accepts(finding: Finding) -> dict[str, str]:
    return {"fingerprint": finding.fingerprint, "because": "on purpose"}


def failed(code: str, *findings: Finding, **parts) -> Result:
    return result(code, Verdict.FAIL, *findings, **parts)


def test_a_ruling_without_evidence_names_none() -> None:
    policy_verdict = ruled(gate("FWD101"), result("FWD101"))
    assert (policy_verdict.accepted, policy_verdict.baseline, policy_verdict.again, policy_verdict.limits) == (
        (),
        None,
        "",
        (),
    )
    assert Evidence() == Evidence(device_name="", baseline=None, baseline_because="", again="")


@pytest.mark.parametrize(
    ("verdict", "is_required", "where_offered", "stands"),
    [
        (Verdict.PASS, True, False, "passed"),
        (Verdict.PASS, False, True, "passed"),
        (Verdict.FAIL, False, True, "failed"),
        (Verdict.TIMEOUT, False, True, "failed"),
        (Verdict.CRASH, False, True, "unknown"),
        (Verdict.CRASH, True, False, "unknown"),
        (Verdict.SKIP, True, True, "unknown"),
        (Verdict.SKIP, False, False, "unknown"),
        (Verdict.SKIP, True, False, "unknown"),
        (Verdict.SKIP, False, True, "not offered"),
    ],
)
def test_a_required_check_stands_where_its_end_puts_it(
    verdict: Verdict, is_required: bool, where_offered: bool, stands: str
) -> None:
    end = result("FWD101", verdict, is_required=is_required, reason="so it is")
    policy_verdict = ruled(gate("FWD101", where_offered=where_offered), end)
    reason = "" if stands == "passed" else "so it is"
    assert policy_verdict.required == (required("FWD101", verdict.value, stands, reason),)
    decisions = {"passed": "GO", "failed": "NO-GO", "unknown": "UNKNOWN", "not offered": "UNKNOWN"}
    assert policy_verdict.decision == decisions[stands]
    assert (NONE_EXAMINED in policy_verdict.why) == (stands in ("unknown", "not offered"))


@pytest.mark.parametrize(
    ("where_offered", "missing", "stands", "why"),
    [
        (True, {"FWD201": "no --data was given"}, "not offered", ("1 required check passed",)),
        (True, None, "unknown", ("FWD201: not checked: it was not run",)),
        (True, {"FWD202": "another"}, "unknown", ("FWD201: not checked: it was not run",)),
        (False, {"FWD201": "no --data was given"}, "unknown", ("FWD201: not checked: no --data was given",)),
    ],
)
def test_a_check_that_never_ran_is_no_pass(
    where_offered: bool, missing: dict[str, str] | None, stands: str, why: tuple[str, ...]
) -> None:
    asked = gate(require=[one("FWD101"), one("FWD201", where_offered=where_offered)])
    policy_verdict = ruled(asked, result("FWD101"), evidence=Evidence(missing=missing))
    assert policy_verdict.decision == ("GO" if stands == "not offered" else "UNKNOWN")
    assert policy_verdict.why == why
    reason = (missing or {}).get("FWD201", "it was not run")
    assert policy_verdict.required[1] == required("FWD201", "absent", stands, reason)


def one(*codes: str, where_offered: bool = False) -> dict[str, object]:
    return {"codes": list(codes), "because": "they matter", "where_offered": where_offered}


def test_where_nothing_applies_nothing_was_examined() -> None:
    skipped = result("FWD101", Verdict.SKIP, is_required=False)
    asked = gate("FWD101", where_offered=True)
    assert (ruled(asked, skipped).decision, ruled(asked, skipped).why) == ("UNKNOWN", (NONE_EXAMINED,))


def test_a_limit_that_is_kept_is_something_examined() -> None:
    skipped = result("FWD101", Verdict.SKIP, is_required=False)
    asked = gate("FWD101", where_offered=True, limits=[FAST])
    policy_verdict = ruled(asked, skipped, evidence=Evidence(measured={"tokens_per_second": 1500.0}))
    assert (policy_verdict.decision, policy_verdict.why) == ("GO", ("1 limit kept",))


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.TIMEOUT])
def test_a_failure_is_something_examined_and_an_accepted_one_too(verdict: Verdict) -> None:
    bad = result("FWD201", verdict, LEAK)
    assert NONE_EXAMINED not in ruled(gate("FWD201"), bad).why
    accepted = ruled(gate("FWD201", accept=[accepts(LEAK)]), bad)
    assert (accepted.decision, accepted.why) == ("GO", ("1 known finding accepted: FWD201",))


def test_what_speaks_against_a_go_stands_before_what_is_unknown() -> None:
    asked = gate("FWD101", "FWD201", "FWD202", limits=[FAST, FEW])
    results = (failed("FWD101", reason="it hangs"), failed("FWD201", LEAK), result("FWD202", Verdict.CRASH))
    evidence = Evidence(measured={"tokens_per_second": 1000.0}, mismatches=("another subject",))
    assert ruled(asked, *results, evidence=evidence, interrupted=True).why == (
        "FWD201 row 3 changes (mixer at /a/mixer.py:12)",
        "FWD101 ended FAIL: it hangs",
        "speed, median after the first tenth: 1,000 tokens/s, must be at least 1,500 (report 003)",
        "another subject",
        "FWD202: CRASH: no reason is known",
        "losses that are not finite: not measured; the run shows none (--run names its folder)",
        "the examination was interrupted",
    )


def test_a_broken_limit_without_a_unit_is_printed_without_one() -> None:
    (why,) = ruled(gate(limits=[FEW]), evidence=Evidence(measured={"nonfinite_losses": 3.0})).why
    assert why == "losses that are not finite: 3, must be at most 2 (a few are skipped)"


def test_checks_that_failed_without_a_finding_are_reported_by_code() -> None:
    results = [result(code, Verdict.TIMEOUT) for code in ("FWD203", "FWD101", "FWD202", "FWD201", "FWD204")]
    codes = [f"FWD{number}" for number in (101, 201, 202, 203, 204)]
    assert ruled(gate(*codes), *results).why == tuple(f"{code} ended TIMEOUT: no finding says why" for code in codes)


def test_further_findings_are_reported_by_code() -> None:
    many = [replace(LEAK, code="", where=Place(module=str(number))) for number in range(5)]
    codes = ("FWD204", "FWD101", "FWD203", "FWD201", "FWD202")
    results = [failed(code).with_findings([replace(each, code=code) for each in many]) for code in codes]
    sentences = [why for why in ruled(gate(*codes), *results).why if why.endswith("more of the same check")]
    assert sentences == [f"{code}: and 2 more of the same check" for code in sorted(codes)]


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        (Place(), "FWD201 row 3 changes"),
        (Place(module="mixer"), "FWD201 row 3 changes (mixer)"),
        (Place(file="/a/b.py", line=3), "FWD201 row 3 changes (/a/b.py:3)"),
    ],
    ids=["nowhere", "module", "line"],
)
def test_a_finding_is_reported_with_its_place(where: Place, sentence: str) -> None:
    assert ruled(gate("FWD201"), failed("FWD201", replace(LEAK, where=where))).why == (sentence,)


def test_a_finding_of_a_check_that_is_not_required_names_who_saw_it() -> None:
    other = replace(LEAK, code="SEL101", also=("FWD204", "FWD101", "FWD203", "FWD201"), where=Place())
    codes = ("FWD101", "FWD201", "FWD203", "FWD204")
    policy_verdict = ruled(gate(*codes), failed("SEL101", other), *(failed(code) for code in codes))
    assert policy_verdict.why == (f"SEL101 row 3 changes (seen by {', '.join(codes)})",)


def test_what_another_check_reports_is_not_repeated_and_its_own_is_judged_by_itself() -> None:
    explained = failed("FWD202", reason="seen beside FWD201")
    policy_verdict = ruled(gate("FWD201", "FWD202"), failed("FWD201", replace(LEAK, also=("FWD202",))), explained)
    assert policy_verdict.why == ("FWD201 row 3 changes (mixer at /a/mixer.py:12)",)
    apart = ruled(gate("FWD201", "FWD202", accept=[accepts(LEAK)]), failed("FWD201", LEAK), failed("FWD202", FLAG))
    assert [each.stands for each in apart.required] == ["accepted", "failed"]
    assert apart.why == ("FWD202 prefix changes",)


def test_a_failure_without_a_finding_is_never_accepted() -> None:
    asked = gate("FWD201", "FWD202", accept=[accepts(LEAK)])
    policy_verdict = ruled(asked, failed("FWD201", LEAK), failed("FWD202"))
    assert (policy_verdict.decision, policy_verdict.why) == ("NO-GO", ("FWD202 ended FAIL: no finding says why",))


def test_unknown_checks_are_reported_by_reason_and_those_beyond_twelve_are_counted() -> None:
    asked = gate("FWD")
    reasons = {"FWD101": "no time", "FWD102": "no time", "FWD103": "no room"}
    ends = [result(code, Verdict.SKIP, reason=reason) for code, reason in reasons.items()]
    others = [code for code in asked.codes if code not in reasons]
    assert len(others) > 12
    assert ruled(asked, *ends).why[:3] == (
        "FWD101, FWD102: not checked: no time",
        "FWD103: not checked: no room",
        f"{', '.join(others[:12])} and {len(others) - 12} more: not checked: it was not run",
    )
    twelve = gate(*others[:12])
    assert ruled(twelve, result("FWD101")).why[0] == f"{', '.join(others[:12])}: not checked: it was not run"


def test_a_skip_and_a_crash_of_one_reason_are_two() -> None:
    ends = [result("FWD101", Verdict.SKIP, reason="x"), result("FWD102", Verdict.CRASH, reason="x")]
    assert ruled(gate("FWD101", "FWD102"), *ends).why[:2] == ("FWD101: not checked: x", "FWD102: CRASH: x")


def test_a_baseline_counts_for_nothing_without_a_reason_and_a_reason_without_a_baseline() -> None:
    bad = failed("FWD201", LEAK)
    known = Compared(report="old.json", unchanged=(LEAK.fingerprint,))
    assert ruled(gate("FWD201"), bad, evidence=Evidence(baseline=known)).decision == "NO-GO"
    assert ruled(gate("FWD201"), bad, evidence=Evidence(baseline_because="known")).decision == "NO-GO"
    both = ruled(gate("FWD201"), bad, evidence=Evidence(baseline=known, baseline_because="known"))
    assert (both.decision, [each.because for each in both.accepted]) == ("GO", ["known"])
    named = gate("FWD201", accept=[accepts(LEAK)])
    policy_verdict = ruled(named, bad, evidence=Evidence(baseline=known, baseline_because="known"))
    assert [each.because for each in policy_verdict.accepted] == ["on purpose"]


def test_a_limit_of_a_device_without_a_run_is_not_measured() -> None:
    policy_verdict = ruled(gate(limits=[{**FAST, "device": "A100"}]))
    assert [(each.kept, each.device) for each in policy_verdict.limits] == [("not measured", "A100")]
    assert policy_verdict.why == (
        f"{policy_verdict.limits[0].title}: not measured; the run shows none (--run names its folder)",
    )


def test_a_limit_of_one_other_device_is_reported_for_its_measure_alone() -> None:
    asked = gate(limits=[{**FAST, "device": "A100"}, FEW, {**FEW, "measure": "steps", "device": "H200"}])
    measured = {"tokens_per_second": 1.0, "nonfinite_losses": 0.0, "steps": 1.0}
    policy_verdict = ruled(asked, evidence=Evidence(measured=measured, device_name="nvidia l4"))
    assert [each.kept for each in policy_verdict.limits] == ["other device", "kept", "other device"]
    assert policy_verdict.why == (
        "speed, median after the first tenth: the policy has limits for other devices alone: A100",
        "training steps made: the policy has limits for other devices alone: H200",
    )


def test_a_limit_is_of_a_device_whose_name_holds_the_text_in_any_case() -> None:
    asked = gate(limits=[{**FAST, "device": "a100"}])
    evidence = Evidence(measured={"tokens_per_second": 1600.0}, device_name="NVIDIA A100-SXM4")
    assert ruled(asked, evidence=evidence).why == ("1 limit kept",)
