"""`nsa-doctor anomaly` as a user runs it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.check import Command
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.torch_errors import TorchError
from nsa_doctor.engine import anomaly
from nsa_doctor.engine.sweep_plan import sweep_points
from tests.nsa_doctor.conftest import is_marked

Doctor = Callable[..., subprocess.CompletedProcess[str]]


def test_a_refused_write_is_reported_once_with_both_lines(doctor: Doctor) -> None:
    done = doctor("anomaly", "--seq", "24", "--subject", "faulty.inplace:residual", "--input", "embeddings", "--quiet")
    assert done.returncode == 1, done.stderr
    output = " ".join(done.stdout.split())
    assert "GRD401 the tensor saved for the backward of native_layer_norm" in output
    assert "is overwritten by add_ at inplace.py:" in output
    assert "at S=24; backward raises" in output
    assert "also FWD101" in output
    assert "1 finding " in output


def test_a_silent_write_is_reported_with_its_line(doctor: Doctor, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("anomaly", "--seq", "24,40", "--subject", "faulty.inplace:numpy_mask", "--output", str(report), "--quiet")
    assert doctor(*words).returncode == 1
    data = json.loads(report.read_text(encoding="utf-8"))
    assert data["command"] == "anomaly"
    (finding,) = [finding for result in data["results"] for finding in result["findings"]]
    assert finding["code"] == "GRD402"
    assert is_marked(finding["where"]["file"], finding["where"]["line"])
    assert finding["evidence"]["length"] == 24
    assert finding["repro"].startswith("nsa-doctor anomaly --seq 24,40 --subject faulty.inplace:numpy_mask")


def test_harmless_writes_are_a_go(doctor: Doctor) -> None:
    done = doctor("anomaly", "--seq", "24", "--subject", "faulty.inplace_healthy:cache", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"GO: {len(registry.of_command(Command.ANOMALY))} checks passed" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seq", "0"), "--seq: lengths must be whole numbers"),
        (("--dtype", "float31"), "--dtype cannot be 'float31'"),
        (("--subject", "no_such:thing", "--config", "x"), "--config is for the built-in subject"),
    ],
    ids=["length", "dtype", "config"],
)
def test_a_wrong_option_is_refused_in_a_sentence(words: tuple[str, ...], said: str, doctor: Doctor) -> None:
    done = doctor("anomaly", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_the_exception_of_a_refused_write_is_reported_with_the_write() -> None:
    where, evidence = Place(module="layers.1", file="a.py", line=3), {"error": TorchError.SAVED_TENSOR_MODIFIED.value}
    found = {
        "FWD101": Finding(code="FWD101", message="the subject raises", where=where, evidence=evidence),
        "GRD401": Finding(code="GRD401", message="overwritten", where=Place(module="layers.0", file="a.py", line=4)),
    }
    results = [Result(code=code, name="", verdict=Verdict.FAIL, findings=(each,)) for code, each in found.items()]
    findings = [finding for result in deduplicate(results, registry.entries()) for finding in result.findings]
    assert [(finding.code, finding.also) for finding in findings] == [("GRD401", ("FWD101",))]


def test_only_the_lengths_asked_for_are_swept() -> None:
    request = anomaly.request(ExaminationRequest(), (5, 9))
    assert request.examination_request.are_all_lengths
    assert {entry.manual.code for entry in request.checks} == set(request.selected)
    assert {"HNG101", "FWD101", "NAN102", "GRD401"} < set(request.selected)
    facts = {"lengths": (5, 9), "boundaries": [], "spread": [1, 2, 3], "modes": ("train",), "dtype": "float32"}
    assert [point.length for point in sweep_points("full", facts)] == [5, 9]
