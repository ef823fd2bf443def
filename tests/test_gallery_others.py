"""Other tools are asked about the gallery's files as the doctor is, each in a process that may hang, die or raise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gallery import others

ROOT = Path(__file__).parents[1]


def test_each_tool_says_what_it_says_of_a_case(tmp_path: Path) -> None:
    names = ("gate_rescaled_in_place", "causal_average")
    output = tmp_path / "said.json"
    words = ("-m", "tests.gallery.others", "--other", "anomaly_mode", "--only", *names, "--output", str(output))
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    said = {spec.split(".")[-1].partition(":")[0]: each for spec, each in json.loads(output.read_text()).items()}
    assert "modified by an inplace operation" in said["gate_rescaled_in_place"]["anomaly_mode"]
    assert said["causal_average"]["anomaly_mode"] is None
    assert "  1 of   1" in done.stdout
    assert "something said of 0 of 1 healthy files" in done.stdout


def test_a_tool_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert others.main(["--other", "torchtest", "torchfix"]) == 2
    assert "not installed: torchtest, torchfix; pip install --no-deps" in capsys.readouterr().err
