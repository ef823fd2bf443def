"""A subject that raises while it is built is a finding with its line, whichever command loads it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.core.measurement import Place
from tests.nsa_doctor.conftest import is_marked

Doctor = Callable[..., subprocess.CompletedProcess[str]]

SUBJECTS = {
    "factory": "ValueError: boom",
    "constructor": "RuntimeError: no such kernel",
    "second_build": "RuntimeError: port is in use",
}
COMMANDS = {
    "run": ("run", "--profile", "smoke"),
    "run of one family": ("run", "--select", "NAN1"),
    "run without its check": ("run", "--profile", "smoke", "--ignore", "FWD101", "--select", "FWD1,NAN101"),
    "sweep": ("sweep", "--seq", "16"),
    "anomaly": ("anomaly", "--seq", "16"),
    "throughput": ("throughput", "--seq", "16"),
    "fuzz": ("fuzz", "forward", "--examples", "2"),
    "go-no-go": ("go-no-go",),
}
GATE_OF_A_RUN = """
profile: smoke
require:
  - codes: [TRN201]
    because: a test asks for a run alone
"""
GATE_OF_A_MODULE = """
profile: smoke
require:
  - codes: [GRD101]
    because: a test asks for one check
"""


def asked(doctor: Doctor, folder: Path, *words: str) -> tuple[int, dict]:
    """Exit code and report."""
    if words[0] == "go-no-go":
        answer = doctor(*words, "--output", str(folder / "reported"), "--quiet")
        return answer.returncode, json.loads((folder / "reported" / "report.json").read_text())
    saving = ("--save", str(folder / "saved.json")) if words[0] == "fuzz" else ()
    answer = doctor(*words, *saving, "--format", "json", "--quiet")
    return answer.returncode, json.loads(answer.stdout)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_command_names_the_exception_and_its_line(
    subject: str, command: str, doctor: Doctor, tmp_path: Path
) -> None:
    code, report = asked(doctor, tmp_path, *COMMANDS[command], "--subject", f"faulty.unbuildable:{subject}")
    found = [finding for result in report["results"] for finding in result["findings"]]
    assert (code, report["decision"], [finding["code"] for finding in found]) == (1, "NO-GO", ["FWD101"])
    assert SUBJECTS[subject] in found[0]["message"]
    assert "build" in found[0]["message"]
    assert is_marked(found[0]["where"]["file"], found[0]["where"]["line"])


@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_gate_is_drafted_from_a_subject_that_gives_no_answer(subject: str, doctor: Doctor, tmp_path: Path) -> None:
    words = ("--profile", "smoke", "--output", str(tmp_path / "gate.yaml"), "--quiet")
    answer = doctor("gate-init", "--subject", f"faulty.unbuildable:{subject}", *words)
    assert (answer.returncode, answer.stdout, list(tmp_path.iterdir())) == (1, "", [])
    assert f"FWD101 the subject raises {SUBJECTS[subject]} in build" in answer.stderr
    assert "unbuildable.py:" in answer.stderr


@pytest.mark.parametrize("text", [GATE_OF_A_RUN, GATE_OF_A_MODULE], ids=["a run", "one check of the module"])
def test_a_gate_that_does_not_ask_for_the_check_is_a_no_go_all_the_same(
    text: str, doctor: Doctor, tmp_path: Path
) -> None:
    (tmp_path / "gate.yaml").write_text(text)
    words = ("go-no-go", "--gate", str(tmp_path / "gate.yaml"), "--subject", "faulty.unbuildable:factory")
    code, report = asked(doctor, tmp_path, *words)
    assert (code, report["decision"]) == (1, "NO-GO")
    assert "ValueError: boom" in report["verdict"]["why"][0]


def test_an_exception_that_ends_other_checks_is_reported_by_the_check_for_exceptions() -> None:
    def raised(code: str) -> Result:
        finding = Finding(code=code, message="raises", where=Place(file="m.py", line=3), evidence={"kind": "raised"})
        return Result(code=code, name="x", verdict=Verdict.FAIL, findings=(finding,))

    results = deduplicate([raised("GRD401"), raised("FWD206"), raised("FWD101")], registry.entries())
    assert [(f.code, f.also) for r in results for f in r.findings] == [("FWD101", ("GRD401", "FWD206"))]
