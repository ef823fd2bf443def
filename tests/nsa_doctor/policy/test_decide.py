"""What a gate concludes from a report: NO-GO, UNKNOWN, GO, and the reasons it gives."""

from dataclasses import replace

import pytest

from nsa.strict import ConfigError
from nsa_doctor.core.finding import Finding, Report, Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.policy_verdict import Compared
from nsa_doctor.core.shipped import shipped
from nsa_doctor.policy.baseline import compare, mismatch
from nsa_doctor.policy.policy import Policy, load_policy
from nsa_doctor.policy.verdict import Evidence, decide

LEAK = Finding(
    code="FWD201",
    message="row 3 changes with token 9",
    where=Place(module="mixer", module_class="Mixer", file="/a/mixer.py", line=12, function="forward"),
)


def gate(**parts):
    parts = {"name": "test", "require": [{"codes": ["FWD101", "FWD201"], "because": "they matter"}], **parts}
    return Policy(**parts)


def report(*results, **parts):
    return Report(command="go-no-go", subject={"name": "x"}, options={}, environment={}, results=results, **parts)


def result(code, verdict=Verdict.PASS, **parts):
    return Result(code=code, name="some-name", verdict=verdict, **parts)


HEALTHY = report(result("FWD101"), result("FWD201"))
FAULTY = report(result("FWD101"), result("FWD201", Verdict.FAIL, findings=(LEAK,)))


def test_a_full_pass_is_a_go():
    policy_verdict = decide(HEALTHY, gate(), Evidence())
    assert (policy_verdict.decision, policy_verdict.why) == ("GO", ("2 required checks passed",))


def test_a_required_failure_is_a_no_go_that_says_what_and_where():
    policy_verdict = decide(FAULTY, gate(), Evidence())
    assert policy_verdict.decision == "NO-GO"
    assert policy_verdict.why == ("FWD201 row 3 changes with token 9 (mixer (Mixer) at /a/mixer.py:12)",)


def test_a_failure_that_is_not_required_stands_in_no_way():
    lenient = gate(require=[{"codes": ["FWD101"], "because": "it matters"}])
    assert decide(FAULTY, lenient, Evidence()).decision == "GO"


@pytest.mark.parametrize(("spec", "decision"), [(["bidirectional"], "GO"), ([], "UNKNOWN")])
def test_what_a_declaration_means_is_not_required(spec, decision):
    strict = gate(require=[{"codes": ["FWD101", "FWD202"], "because": "they matter"}])
    excused = report(result("FWD101"), result("FWD202", Verdict.SKIP, reason="declared", is_required=False))
    declared = replace(excused, subject={"name": "x", "spec": spec})
    assert decide(declared, strict, Evidence()).decision == decision


def test_a_baseline_of_a_subject_declared_otherwise_is_no_evidence():
    (sentence,) = mismatch(HEALTHY, replace(HEALTHY, subject={"name": "x", "spec": ["bidirectional"]}), "old.json")
    assert sentence == "the baseline old.json is of a subject declared bidirectional; examined is one declared nothing"


@pytest.mark.parametrize("verdict", [Verdict.SKIP, Verdict.CRASH])
def test_what_did_not_end_is_unknown(verdict):
    policy_verdict = decide(report(result("FWD101"), result("FWD201", verdict, reason="no time")), gate(), Evidence())
    assert policy_verdict.decision == "UNKNOWN"
    assert "FWD201" in policy_verdict.why[0]
    assert "no time" in policy_verdict.why[0]


def test_what_was_not_run_is_unknown_with_its_reason():
    policy_verdict = decide(report(result("FWD101")), gate(), Evidence(missing={"FWD201": "no --checkpoint was given"}))
    assert (policy_verdict.decision, policy_verdict.why) == (
        "UNKNOWN",
        ("FWD201: not checked: no --checkpoint was given",),
    )


def test_evidence_that_was_not_given_is_missing_only_where_the_gate_insists():
    asked = [{"codes": ["FWD101"], "because": "x"}, {"codes": ["CKP101"], "because": "x", "where_offered": True}]
    evidence = Evidence(missing={"CKP101": "no --checkpoint was given"})
    assert decide(report(result("FWD101")), gate(require=asked), evidence).decision == "GO"
    asked[1]["where_offered"] = False
    assert decide(report(result("FWD101")), gate(require=asked), evidence).decision == "UNKNOWN"


def test_a_time_out_is_a_no_go():
    policy_verdict = decide(report(result("FWD101"), result("FWD201", Verdict.TIMEOUT)), gate(), Evidence())
    assert policy_verdict.decision == "NO-GO"


@pytest.mark.parametrize(("where_offered", "decision"), [(True, "GO"), (False, "UNKNOWN")])
def test_a_part_that_is_not_offered_is_missing_only_where_the_gate_insists(where_offered, decision):
    skipped = result("FWD201", Verdict.SKIP, reason="it offers no oracle", is_required=False)
    asked = [{"codes": ["FWD101", "FWD201"], "because": "x", "where_offered": where_offered}]
    assert decide(report(result("FWD101"), skipped), gate(require=asked), Evidence()).decision == decision


def test_the_stricter_of_two_requirements_counts():
    skipped = result("FWD201", Verdict.SKIP, is_required=False)
    asked = [
        {"codes": ["FWD"], "because": "x", "where_offered": True},
        {"codes": ["FWD201"], "because": "this one in any case"},
    ]
    policy_verdict = decide(report(result("FWD101"), skipped), gate(require=asked), Evidence())
    assert next(each for each in policy_verdict.required if each.code == "FWD201").because == "this one in any case"
    assert policy_verdict.decision == "UNKNOWN"


def test_an_empty_report_is_unknown():
    assert decide(report(), gate(), Evidence()).decision == "UNKNOWN"


def test_an_interrupted_examination_is_no_go_or_unknown_and_never_go():
    assert decide(replace(HEALTHY, interrupted=True), gate(), Evidence()).decision == "UNKNOWN"
    assert decide(replace(FAULTY, interrupted=True), gate(), Evidence()).decision == "NO-GO"


def test_evidence_of_another_subject_makes_unknown():
    policy_verdict = decide(HEALTHY, gate(), Evidence(mismatches=("the run is of another configuration",)))
    assert (policy_verdict.decision, policy_verdict.why) == ("UNKNOWN", ("the run is of another configuration",))


def test_a_known_finding_may_stay_for_a_reason():
    accepted = gate(accept=[{"fingerprint": LEAK.fingerprint, "because": "bidirectional on purpose"}])
    policy_verdict = decide(FAULTY, accepted, Evidence())
    assert policy_verdict.decision == "GO"
    assert [each.because for each in policy_verdict.accepted] == ["bidirectional on purpose"]


def test_a_known_finding_does_not_excuse_another_of_the_same_check():
    other = replace(LEAK, where=replace(LEAK.where, module="head"))
    both = report(result("FWD101"), result("FWD201", Verdict.FAIL, findings=(LEAK, other)))
    accepted = gate(accept=[{"fingerprint": LEAK.fingerprint, "because": "known"}])
    assert decide(both, accepted, Evidence()).decision == "NO-GO"


def test_what_an_accepted_finding_explains_is_accepted_with_it():
    explaining = replace(LEAK, also=("FWD101",))
    folded = report(
        result("FWD101", Verdict.FAIL, reason="seen beside FWD201, which may explain it"),
        result("FWD201", Verdict.FAIL, findings=(explaining,)),
    )
    accepted = gate(accept=[{"fingerprint": explaining.fingerprint, "because": "known"}])
    assert decide(folded, accepted, Evidence()).decision == "GO"


@pytest.mark.parametrize(("because", "decision"), [("known since March", "GO"), ("", "NO-GO")])
def test_a_finding_of_the_baseline_stays_only_for_a_reason(because, decision):
    evidence = Evidence(baseline=compare(FAULTY, FAULTY, "old.json"), baseline_because=because)
    policy_verdict = decide(FAULTY, gate(), evidence)
    assert policy_verdict.decision == decision
    assert policy_verdict.baseline == Compared(report="old.json", unchanged=(LEAK.fingerprint,))


def test_a_baseline_tells_new_fixed_and_unchanged_apart():
    assert compare(FAULTY, HEALTHY, "a").new == (LEAK.fingerprint,)
    assert compare(HEALTHY, FAULTY, "a").fixed == (LEAK.fingerprint,)
    moved = replace(LEAK, where=replace(LEAK.where, line=99, file="/b/mixer.py"), message="row 4 changes with token 11")
    later = report(result("FWD101"), result("FWD201", Verdict.FAIL, findings=(moved,)))
    assert compare(later, FAULTY, "a") == Compared(report="a", unchanged=(LEAK.fingerprint,))


def test_what_was_not_looked_at_again_is_not_fixed():
    skipped = report(result("FWD101"), result("FWD201", Verdict.SKIP))
    assert compare(skipped, FAULTY, "a").fixed == ()


SPEED = {"measure": "tokens_per_second", "at_least": 300, "because": "report 003"}


@pytest.mark.parametrize(
    ("value", "decision"), [(370.0, "GO"), (300.0, "GO"), (6.0, "NO-GO"), (float("nan"), "NO-GO"), (None, "UNKNOWN")]
)
def test_a_limit_is_kept_broken_or_not_measured(value, decision):
    policy_verdict = decide(HEALTHY, gate(limits=[SPEED]), Evidence(measured={"tokens_per_second": value}))
    assert policy_verdict.decision == decision


def test_a_limit_without_a_run_is_unknown():
    assert decide(HEALTHY, gate(limits=[SPEED]), Evidence()).decision == "UNKNOWN"


def test_limits_of_other_devices_alone_are_no_evidence():
    limits = [{**SPEED, "device": "A100"}, {**SPEED, "device": "H200", "at_least": 1000}]
    measured = {"tokens_per_second": 500.0}
    unknown = decide(HEALTHY, gate(limits=limits), Evidence(measured=measured, device_name="NVIDIA L4"))
    assert (unknown.decision, unknown.why) == (
        "UNKNOWN",
        ("speed, median after the first tenth: the policy has limits for other devices alone: A100, H200",),
    )
    assert decide(HEALTHY, gate(limits=limits), Evidence(measured=measured, device_name="NVIDIA A100")).decision == "GO"
    slow = decide(HEALTHY, gate(limits=limits), Evidence(measured=measured, device_name="NVIDIA H200"))
    assert slow.decision == "NO-GO"


@pytest.mark.parametrize("name", ["ci", "production", "foreign"])
def test_gates_that_ship_say_why(name):
    loaded = load_policy(name)
    assert all(len(each.because) > 20 for each in (*loaded.require, *loaded.limits))
    assert len(loaded.digest) == 64


def test_every_gate_of_the_checkout_ships():
    assert set(shipped("policies")) == {"ci", "production", "foreign", "function", "smoke"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "a policy file is a mapping"),
        ("[]", "a policy file is a mapping"),
        ("profile: quick", "a policy that requires nothing"),
        ("require: []", "a policy that requires nothing"),
        ("require: [{codes: [FWX], because: a}]", "did you mean FWD"),
        ("require: [{codes: [], because: a}]", "must have at least 1 item"),
        ("require: [{codes: FWD, because: a}]", "must be a list"),
        ("require: [{codes: [FWD]}]", "require.0.because is missing"),
        ("require: [{codes: [FWD], becuase: a}]", "did you mean because"),
        ("limits: [{measure: loss_rato, at_most: 1, because: a}]", "did you mean loss_ratio"),
        ("limits: [{measure: loss_ratio, because: a}]", "at_least or at_most"),
        ("limits: [{measure: loss_ratio, at_most: 1, at_least: 0, because: a}]", "at_least or at_most"),
        ("limits: [{measure: loss_ratio, at_most: .nan, because: a}]", "finite"),
        ("profile: fast\nrequire: [{codes: [FWD], because: a}]", "'smoke', 'quick' or 'full'"),
        ("digest: abc\nrequire: [{codes: [FWD], because: a}]", "digest is not for a file to say"),
        ("accept: [{fingerprint: XYZ, because: a}]\nrequire: [{codes: [FWD], because: a}]", "accept.0.fingerprint"),
        ("require: &a [*a]", "anchors"),
    ],
)
def test_a_gate_file_that_cannot_be_is_refused_in_a_sentence(tmp_path, text, complaint):
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_policy(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_gate_file_names_the_built_in_ones(tmp_path):
    with pytest.raises(ConfigError, match="built in are ci, foreign, function, production"):
        load_policy(str(tmp_path / "none.yaml"))


def test_where_a_check_failed_nothing_says_that_none_was_examined():
    policy_verdict = decide(
        report(result("FWD101", Verdict.SKIP, reason="r"), result("FWD201", Verdict.FAIL)), gate(), Evidence()
    )
    assert not any("nothing that the policy requires" in why for why in policy_verdict.why)
