"""What a process answers arrives as it is, and what cannot be sent is never the subject's death."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa_doctor.artifacts.checkpoint.reader import ReadRequest, read_checkpoint
from nsa_doctor.checks.fwd import fwd208_call_changes_its_arguments as fwd208
from nsa_doctor.core import registry
from nsa_doctor.core.errors import InternalError
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Decision, Finding, Report, Result, Verdict
from nsa_doctor.engine.run import RunRequest, run
from nsa_doctor.isolation.worker_process import WorkerProcess
from nsa_doctor.probes.model.state import can_be_forked
from nsa_doctor.render.formats import FORMATS, render_as
from nsa_doctor.render.reading import parse_report
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.answer_line import line_of, sendable
from tests.nsa_doctor.conftest import HERE

NOT_FINITE = {"mean": math.nan, "largest": math.inf, "least": -math.inf}
UNSENDABLE = {
    "a tensor": lambda: torch.zeros(2),
    "a tensor of a graph": lambda: torch.zeros(2, requires_grad=True) * 2,
    "a set": lambda: {1},
    "a circle": lambda: (circle := {}, circle.update(itself=circle))[0],
}
forked = pytest.mark.skipif(not can_be_forked(), reason="a check made here reaches a child by a fork")


def reporting(evidence: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Report:
    """The report of a run in which FWD208 finds something with this evidence; another check follows it."""

    def find(_: Subject) -> Iterator[Finding]:
        yield Finding(message="3 rows differ", evidence=evidence())

    monkeypatch.setattr(fwd208, "CHECK", replace(fwd208.CHECK, run=find))
    checks = tuple(registry.select(("FWD208", "GRD401"), (), "smoke"))
    examination_request = ExaminationRequest(config=str(HERE / "small.yaml"), profile="smoke", threads=1, explore=True)
    return run(RunRequest(examination_request=examination_request, checks=checks))


def ends_of(report: Report) -> dict[str, Verdict]:
    return {result.code: result.verdict for result in report.results}


@forked
def test_numbers_that_are_not_finite_reach_the_report_and_every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    report = reporting(lambda: dict(NOT_FINITE), monkeypatch)
    assert ends_of(report) == {"FWD208": Verdict.FAIL, "GRD401": Verdict.PASS}
    (finding,) = report.findings
    assert str(dict(finding.evidence)) == str(NOT_FINITE)
    for form in FORMATS:
        text = render_as(report, form)
        assert "3 rows differ" in text
        if form in ("json", "sarif"):
            json.loads(text, parse_constant=pytest.fail)
        if form in ("json", "sarif", "md", "html"):
            assert len(re.findall(r"\bNaN\b|-?\bInfinity\b", text)) >= len(NOT_FINITE)
    (again,) = parse_report(render_as(report, "json")).findings
    assert str(dict(again.evidence)) == str(NOT_FINITE)


@forked
@pytest.mark.parametrize("made", UNSENDABLE.values(), ids=UNSENDABLE)
def test_evidence_that_cannot_be_sent_is_a_crash_of_its_check_alone(
    made: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = reporting(lambda: {"value": made()}, monkeypatch)
    assert ends_of(report) == {"FWD208": Verdict.CRASH, "GRD401": Verdict.PASS}
    assert report.findings == ()
    assert report.decision is Decision.UNKNOWN
    assert "cannot be sent" in next(result.reason for result in report.results if result.code == "FWD208")


@forked
def test_any_other_answer_that_cannot_be_sent_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa_doctor.worker.handlers._environment", lambda _: {"device": object()})
    with pytest.raises(InternalError, match="object is not JSON serializable"):
        reporting(dict, monkeypatch)


@forked
def test_an_errand_whose_answer_cannot_be_sent_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa_doctor.worker.replay_main.answered", lambda *_: {"loss": object()})
    refused = pytest.raises(InternalError, match="object is not JSON serializable")
    with WorkerProcess("nsa_doctor.worker.replay_main") as child, refused:
        child.ask({}, 60.0)


@forked
def test_an_errand_brings_numbers_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa_doctor.worker.replay_main.answered", lambda *_: dict(NOT_FINITE))
    with WorkerProcess("nsa_doctor.worker.replay_main") as child:
        assert str(child.ask({}, 60.0)) == str(NOT_FINITE)


def test_a_checkpoint_whose_reading_cannot_be_sent_is_an_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_room_of_sets.py").write_text(
        "def open_room(channel):\n    return lambda request: {'read': {1, 2}}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("nsa_doctor.artifacts.checkpoint.reader._ROOM", "a_room_of_sets")
    with pytest.raises(InternalError, match="TypeError: Object of type set is not JSON serializable"):
        read_checkpoint("nowhere.pt", ReadRequest())


def test_a_result_that_can_be_sent_is_left_as_it_is() -> None:
    result = Result(code="FWD101", name="x", verdict=Verdict.FAIL, findings=(Finding(message="m", evidence={"n": 1}),))
    assert Result.from_json(sendable(result)) == result


def test_a_line_is_one_line_whatever_it_says() -> None:
    assert json.loads(line_of(lambda: {"text": "a\nb\ud800"})) == {"text": "a\nb\ud800"}
    assert "\n" not in line_of(lambda: {"text": "a\nb"})


def test_lines_are_made_without_torch() -> None:
    program = "import sys, nsa_doctor.worker.answer_line; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
