"""`nsa-doctor run`: any set of checks, each cause named once; what goes wrong in one check costs that check alone."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.check import PROFILES
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Decision, Finding, Report, Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.engine.run import RunRequest, run
from nsa_doctor.isolation.supervisor import Supervisor
from tests.nsa_doctor.conftest import HERE, environment, is_marked

Doctor = Callable[..., subprocess.CompletedProcess[str]]
SMALL = str(HERE / "small.yaml")


def ran(spec: str | None = None, *select: str, profile: str = "quick", **options) -> Report:
    config = None if spec else SMALL
    how = {"explore": True, "lengths": (32,), "profile": profile, "threads": 1, "timeout": 30.0}
    examination_request = ExaminationRequest(spec=spec and f"faulty.{spec}", config=config, **how)
    checks = tuple(registry.select(select, (), profile))
    return run(RunRequest(examination_request=examination_request, checks=checks, selected=select, **options))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def verdicts(report: Report) -> dict[str, Verdict]:
    return {result.code: result.verdict for result in report.results}


def test_healthy_nsa_passes_every_check_of_the_smoke_profile() -> None:
    report = ran(profile="smoke", jobs=2)
    assert report.findings == ()
    assert report.decision is Decision.GO
    assert len(report.results) == len(registry.select((), (), "smoke"))


@pytest.mark.parametrize("codes", ["FWD20", pytest.param("FWD", marks=pytest.mark.full)])
def test_a_leak_is_one_finding_that_names_module_and_line(codes: str) -> None:
    report = ran("comparisons:sees_the_next_token", codes, "NAN101")
    assert [finding.code for finding in report.findings] == ["FWD201"]
    where = report.findings[0].where
    assert where.module == "part"
    assert is_marked(where.file, where.line)
    assert "FWD202" in report.findings[0].also
    assert verdicts(report)["FWD202"] is Verdict.FAIL


def test_checks_that_mean_nothing_beside_a_failure_are_skipped_and_say_so() -> None:
    report = ran("comparisons:noisy_in_eval", "FWD2")
    assert [finding.code for finding in report.findings] == ["FWD206"]
    skipped = [result for result in report.results if result.verdict is Verdict.SKIP]
    assert {"FWD201", "FWD203"} <= {result.code for result in skipped}
    assert {result.reason for result in skipped if result.is_required} == {"means nothing while FWD206 fails"}


def test_what_was_asked_for_by_name_and_does_not_apply_makes_the_decision_unknown() -> None:
    report = ran("healthy:causal", "FWD206", "DEC101")
    assert verdicts(report) == {"FWD206": Verdict.PASS, "DEC101": Verdict.SKIP}
    assert report.decision is Decision.UNKNOWN  # DEC101 was asked for by name


def test_what_does_not_apply_of_a_family_asked_for_is_no_obstacle() -> None:
    report = ran("healthy:causal", "FWD30", "FWD206")
    assert verdicts(report)["FWD301"] is Verdict.SKIP
    assert report.decision is Decision.GO


def test_what_was_not_asked_for_by_name_and_does_not_apply_is_no_obstacle() -> None:
    report = ran("healthy:causal", profile="smoke", jobs=2)
    assert report.decision is Decision.GO
    assert any(not result.is_required for result in report.results)


def test_a_hang_at_one_length_costs_that_length_alone() -> None:
    examination_request = ExaminationRequest(
        spec="faulty.comparisons:hangs_at_67", lengths=(32,), explore=True, threads=1, timeout=2.0
    )
    checks = tuple(registry.select(("FWD201", "FWD203", "NAN101"), (), "quick"))
    report = run(RunRequest(examination_request=examination_request, checks=checks))
    found = verdicts(report)
    assert Verdict.TIMEOUT in found.values()
    assert found["NAN101"] is Verdict.PASS
    hangs = [finding for finding in report.findings if "does not return" in finding.message]
    assert len(hangs) == len(report.findings) == 1
    assert "S=67 is not tried again" in next(r.reason for r in report.results if r.verdict is Verdict.SKIP)
    assert is_marked(hangs[0].where.file, hangs[0].where.line)


def test_a_check_that_does_not_finish_is_skipped_and_the_next_one_runs() -> None:
    supervisor = Supervisor(ExaminationRequest(config=SMALL, threads=1))
    try:
        assert supervisor.load() == []
        slow = supervisor.check("FWD201", 20.0, at_most=0.0)
        after = supervisor.check("FWD208", 20.0)
    finally:
        supervisor.close()
    assert (slow.verdict, slow.reason) == (Verdict.SKIP, "not finished within 0 s")
    assert after.verdict is Verdict.PASS


def test_fail_fast_stops_at_the_first_failure() -> None:
    report = ran("comparisons:noisy_in_eval", "FWD206", "FWD208", "GRD", fail_fast=True)
    assert verdicts(report) == {"FWD206": Verdict.FAIL}


@pytest.mark.full
def test_two_processes_find_what_one_finds() -> None:
    alone, together = (ran("comparisons:mixes_rows", "FWD2", jobs=jobs) for jobs in (1, 2))
    assert verdicts(alone) == verdicts(together)
    assert [f.where for f in alone.findings] == [f.where for f in together.findings]


def test_a_rude_subject_changes_no_result_and_what_it_did_is_said() -> None:
    report = ran("healthy:rude", "FWD101", "FWD206", "FWD201")
    assert report.findings == ()
    assert any("default dtype" in note for note in report.notes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--select", "XYZ"), "no check's code starts with 'XYZ'"),
        (("--select", ","), "--select must name codes or families"),
        (("--select", "FWD101", "--ignore", "FWD"), "no check is left"),
        (("--profile", "quik"), "did you mean quick"),
        (("--jobs", "0"), "--jobs must be from 1"),
        (("--subject", "nonsense"), "--subject must be package.module:factory"),
    ],
)
def test_a_request_that_cannot_be_is_refused(doctor: Doctor, words: tuple[str, ...], message: str) -> None:
    answer = doctor("run", *words)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert message in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("codes", ["FWD20", pytest.param("FWD2", marks=pytest.mark.full)])
def test_the_command_prints_an_overview_and_the_finding(codes: str, doctor: Doctor) -> None:
    answer = doctor("run", "--subject", "faulty.comparisons:mixes_rows", "--select", codes, "--jobs", "2")
    assert answer.returncode == 1
    assert "FWD  forward" in answer.stdout
    assert "FWD203 other rows of the batch" in answer.stdout
    assert "NO-GO: 1 finding" in answer.stdout
    assert "FWD203 batch-rows-mix: FAIL" in answer.stderr


def test_the_line_to_paste_finds_it_again(doctor: Doctor) -> None:
    command = ["run", "--subject", "faulty.comparisons:mixes_rows", "--select", "FWD203", "--format", "json", "--quiet"]
    first = json.loads(doctor(*command).stdout)
    repro = first["results"][0]["findings"][0]["repro"].split()
    again = doctor(*repro[1:], "--format", "json", "--quiet")
    assert again.returncode == 1
    assert json.loads(again.stdout)["results"][0]["findings"][0]["where"] == first["results"][0]["findings"][0]["where"]


def test_an_interrupted_run_reports_what_it_found(tmp_path: Path) -> None:
    words = ["-m", "nsa_doctor", "run", "--select", "FWD", "--profile", "full", "--jobs", "2", "--quiet"]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, cwd=HERE, env=environment(), text=True)
    try:
        time.sleep(6)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in printed


def result(code: str, *places: Place) -> Result:
    findings = tuple(Finding(message=code, code=code, where=place) for place in places)
    return Result(code=code, name="x", verdict=Verdict.FAIL if places else Verdict.PASS, findings=findings)


def test_one_line_is_one_cause() -> None:
    line = Place(module="a", file="m.py", line=3)
    results = deduplicate([result("PRF101", line), result("HNG201", line)], registry.entries())
    assert [finding.code for found in results for finding in found.findings] == ["HNG201"]
    assert results[1].reason.startswith("seen beside HNG201")


def test_what_another_check_explains_is_reported_there_when_the_module_is_the_same() -> None:
    same, other = Place(module="layers.0.attn"), Place(module="layers.1.mlp")
    results = deduplicate([result("FWD202", same, other), result("FWD201", same)], registry.entries())
    assert [(f.code, f.where.module) for r in results for f in r.findings] == [
        ("FWD201", "layers.0.attn"),
        ("FWD202", "layers.1.mlp"),
    ]


def test_what_must_be_mended_first_comes_first() -> None:
    codes = ["PRF101", "GRD101", "FWD201", "NAN101", "GRD401", "FWD206"]
    priority = registry.priorities(codes)
    assert sorted(codes, key=priority.__getitem__) == ["GRD401", "NAN101", "FWD206", "FWD201", "GRD101", "PRF101"]


def test_no_check_waits_for_itself() -> None:
    entries = registry.entries()

    def waits_for(code: str, seen: tuple[str, ...] = ()) -> None:
        assert code not in seen, f"{' -> '.join((*seen, code))}"
        for other in entries:
            if entries[code].blocked_by and other.startswith(entries[code].blocked_by):
                waits_for(other, (*seen, code))

    for code in entries:
        waits_for(code)


def test_codes_a_check_refers_to_exist() -> None:
    entries = registry.entries()
    for code, entry in entries.items():
        assert entry.profile in PROFILES
        for other in (*entry.blocked_by, *entry.explained_by):
            assert any(known.startswith(other) for known in entries), f"{code} refers to {other}"
