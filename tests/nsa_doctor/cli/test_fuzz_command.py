"""`nsa-doctor fuzz` as a user has it: what fails is saved and tried again, a hang or a death is an input too."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nsa_doctor.conftest import HERE, environment, is_marked

Doctor = Callable[..., subprocess.CompletedProcess[str]]
FAULTY = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) if x.shape[1] < 3 else self.linear(x.flip(1))
"""


def test_an_input_is_saved_tried_again_and_holds_once_healed(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAULTY)
    words = ["fuzz", "forward", "--subject", "mine:Mine", "--examples", "150", "--quiet"]
    found = doctor(*words, cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert "FWD201" in found.stdout
    assert "length 3, cut 1, rows 1" in found.stdout
    again = ["fuzz", "--replay", "nsa-doctor-fuzz-forward.json", "--subject", "mine:Mine", "--quiet"]
    assert f"nsa-doctor {' '.join(again[:-1])}\n" in found.stdout
    assert {entry.name for entry in tmp_path.iterdir()} - {"__pycache__"} == {"mine.py", again[2]}
    repeated = doctor(*again, cwd=tmp_path)
    assert repeated.returncode == 1, repeated.stderr
    assert "length 3, cut 1, rows 1" in repeated.stdout
    (tmp_path / "mine.py").write_text(FAULTY.replace("x.flip(1)", "x"))
    healed = doctor(*again, cwd=tmp_path)
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert "the saved input holds" in healed.stdout


def test_planted_nsa_is_found_by_the_command_and_reported_in_json(doctor: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    words = [
        "--subject",
        "faulty.fuzzed:faulty_nsa",
        "--examples",
        "20",
        "--save",
        str(path),
        "--quiet",
        "--format",
        "json",
    ]
    answer = doctor("fuzz", "select", *words)
    assert answer.returncode == 1, answer.stderr
    (result,) = json.loads(answer.stdout)["results"]
    (finding,) = result["findings"]
    assert (finding["code"], finding["where"]["function"]) == ("SEL103", "<lambda>")
    assert finding["evidence"]["property"] == "unsorted"
    assert json.loads(path.read_text())["case"]["importance"] == [[[[0.0]]]]


def test_what_is_not_offered_is_unknown(doctor: Doctor, tmp_path: Path) -> None:
    words = ["--subject", "faulty.healthy:causal", "--examples", "5", "--save", str(tmp_path / "x.json"), "--quiet"]
    answer = doctor("fuzz", "all", *words)
    assert answer.returncode == 3, answer.stdout + answer.stderr
    for target in ("ranges", "masks", "select", "attend"):
        assert f"not tried: {target}: the subject offers no {target}" in answer.stdout
    assert "forward  pass" in answer.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "verdict"), [("hangs", "TIMEOUT"), pytest.param("dies", "FAIL", marks=pytest.mark.full)]
)
def test_an_input_that_ends_the_process_is_reported_with_its_line(
    name: str, verdict: str, doctor: Doctor, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    words = ["--subject", f"faulty.fuzzed:{name}", "--examples", "50", "--save", str(path), "--timeout", "3", "--quiet"]
    answer = doctor("fuzz", "forward", *words, "--format", "json")
    assert answer.returncode == 1, answer.stdout + answer.stderr
    (result,) = json.loads(answer.stdout)["results"]
    (finding,) = result["findings"]
    assert (result["verdict"], finding["code"]) == (verdict, "HNG101")
    assert is_marked(finding["where"]["file"], finding["where"]["line"])
    assert json.loads(path.read_text())["case"]["length"] >= 9
    if name == "dies":  # a hang costs its whole time limit and is not made smaller
        assert json.loads(path.read_text())["case"]["length"] <= 12
        assert doctor("fuzz", "--replay", str(path), *words[:2], "--quiet").returncode == 1


@pytest.mark.full
def test_an_interruption_reports_what_was_tried(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nsa_doctor", "fuzz", "select", "--minutes", "5", "--examples", "100000"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "select: " in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in output
    assert "inputs tried" in output
    assert "Traceback" not in output + errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_minutes_bound_the_time(doctor: Doctor, tmp_path: Path) -> None:
    start = time.monotonic()
    words = ["--minutes", "0.02", "--examples", "100000", "--config", str(HERE / "small.yaml"), "--quiet"]
    answer = doctor("fuzz", "ranges", *words, cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "ranges   pass" in answer.stdout
    assert time.monotonic() - start < 60
