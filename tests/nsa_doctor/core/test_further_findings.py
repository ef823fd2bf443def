"""Findings of one check beyond the first three are counted, wherever a report is read, and a gate asks for them too."""

import json
from dataclasses import replace

import pytest

from nsa_doctor.artifacts.checkpoint.judging import judged_together
from nsa_doctor.artifacts.judging import judge
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Report, Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.policy.baseline import compare
from nsa_doctor.policy.policy import Policy
from nsa_doctor.policy.policy_draft import draft
from nsa_doctor.policy.verdict import Evidence, decide
from nsa_doctor.render import json as as_json
from nsa_doctor.render.formats import FORMATS, render_as
from nsa_doctor.render.reading import parse_report
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DOC = "FWD201 future-changes-output\n\nDetects: a.\nMatters: b.\nFix: c.\n"
MORE = "FWD201: and 4 more of the same check"


def found(count: int) -> list[Finding]:
    return [Finding(code="FWD201", message=f"layer {n}", where=Place(module=f"layers.{n}")) for n in range(count)]


def result(count: int = 7) -> Result:
    return Result(code="FWD201", name="future-changes-output", verdict=Verdict.FAIL).with_findings(found(count))


def report(*results: Result) -> Report:
    subject = {"name": "x", "options": [], "input": "tokens", "width": 7, "dtype": "float32"}
    return Report(command="run", subject=subject, options={"profile": "quick"}, environment={}, results=results)


def faulty(count: int) -> Check:
    return Check(doc=DOC, run=lambda subject: iter(found(count)), planted=lambda subject: subject)


@pytest.mark.parametrize(("count", "kept", "further"), [(0, 0, 0), (1, 1, 0), (3, 3, 0), (4, 3, 1), (7, 3, 4)])
def test_a_check_tells_three_findings_and_counts_the_others(
    count: int, kept: int, further: int, small: Subject
) -> None:
    for ended in (run_check(faulty(count), small), judge(faulty(count), object())):
        assert (len(ended.findings), len(ended.further)) == (kept, further)
        assert ended.further == tuple(finding.fingerprint for finding in found(count)[3:])


def test_a_result_comes_back_from_a_child_with_its_further_findings() -> None:
    ended = result()
    record = json.loads(json.dumps(as_json._result(ended)))
    for finding in record["findings"]:
        del finding["fingerprint"]
    assert Result.from_json(record) == ended


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "json"])
def test_every_format_says_how_many_more_there_are(form: str) -> None:
    assert MORE in render_as(report(result()), form)
    assert "of the same check" not in render_as(report(result(3)), form)


def test_json_holds_them_where_there_are_any() -> None:
    written = json.loads(as_json.render(report(result())))["results"][0]
    assert written["further"] == [finding.fingerprint for finding in found(7)[3:]]
    assert "further" not in json.loads(as_json.render(report(result(3))))["results"][0]


def test_a_report_without_them_is_read_as_it_was() -> None:
    document = json.loads(as_json.render(report(result())))
    assert parse_report(json.dumps(document)).results == (result(),)
    del document["results"][0]["further"]
    assert parse_report(json.dumps(document)).results == (replace(result(), further=()),)


def test_checkpoints_that_are_read_together_keep_all_of_them() -> None:
    (together,) = judged_together([[result()], [result(4)]])
    assert (len(together.findings), len(together.further)) == (6, 5)


def gate(*fingerprints: str) -> Policy:
    accept = [{"fingerprint": each, "because": "known"} for each in fingerprints]
    return Policy(name="test", require=[{"codes": ["FWD201"], "because": "x"}], accept=accept)


def test_a_gate_that_accepts_what_is_shown_does_not_accept_the_rest() -> None:
    shown = [finding.fingerprint for finding in found(3)]
    every = [finding.fingerprint for finding in found(7)]
    policy_verdict = decide(report(result()), gate(*shown), Evidence())
    assert (policy_verdict.decision, policy_verdict.why) == ("NO-GO", (MORE,))
    assert decide(report(result()), gate(*every[:-1]), Evidence()).why == ("FWD201: and 1 more of the same check",)
    accepted = decide(report(result()), gate(*every), Evidence())
    assert accepted.decision == "GO"
    assert [each.fingerprint for each in accepted.accepted] == every


def test_a_gate_counts_them_beside_the_findings_it_names() -> None:
    policy_verdict = decide(report(result()), gate(), Evidence())
    assert policy_verdict.why == (*(f"FWD201 layer {n} (layers.{n})" for n in range(3)), MORE)


def test_a_baseline_knows_them() -> None:
    again = compare(report(result()), report(result(4)), "old.json")
    assert (len(again.unchanged), len(again.new)) == (4, 3)
    fewer = compare(report(result(4)), report(result()), "old.json")
    assert fewer.fixed == tuple(finding.fingerprint for finding in found(7)[4:])
    evidence = Evidence(baseline=compare(report(result()), report(result()), "old"), baseline_because="known")
    assert decide(report(result()), gate(), evidence).decision == "GO"


def test_a_drafted_gate_names_them_all() -> None:
    drafted = draft(report(result()), {}, "")
    assert all(finding.fingerprint in drafted for finding in found(7))
