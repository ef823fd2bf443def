"""`make` sets up .venv once, and again only when what it installs has changed; .ci/run fails when anything failed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Stands in for Python: notes its arguments, makes an environment of copies of itself, fails when $FAIL is among them.
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
case "$*" in "-m venv "*)
    mkdir -p .venv/bin
    for name in python nsa-doctor ruff mypy; do cp "$0" ".venv/bin/$name"; done ;;
esac
case "$(basename "$0") $*" in *"$FAIL"*) exit 1 ;; esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "stand-in").write_text(STAND_IN)
    (tmp_path / "stand-in").chmod(0o755)
    for name in ("chromium", "apt-get"):  # nothing is installed on the machine of the tests
        (tmp_path / "browser").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "stand-in", tmp_path / "browser" / name)
    return tmp_path


def run(project: Path, *command: str, fail: str = "no such call") -> tuple[int, list[str]]:
    """The exit status, and the calls that were made."""
    log = project / "log"
    log.write_text("")
    path = f"{project / 'browser'}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"LOG": str(log), "FAIL": fail, "PYTHON": "./stand-in", "MAKEFLAGS": "", "PATH": path}
    done = subprocess.run(
        command, cwd=project, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    return done.returncode, [line for line in log.read_text().splitlines() if " -c import sys" not in line]


TESTS = [
    "python -m pytest -n 3 regressions tests --ignore tests/nsa/nn --ignore tests/nsa/ops",
    "python -m pytest -n 2 --jaxtyping-packages=nsa,beartype.beartype tests/nsa/nn tests/nsa/ops",
]
SWEEP = "nsa-doctor sweep --seq 128,512,1024,2048"
SET_UP = [
    "stand-in -m venv .venv",
    "python -m pip install --disable-pip-version-check --no-input --no-compile -c constraints.txt -e .[dev]",
    "python -m compileall -qq -j 0 .venv/lib",
]


def test_the_first_run_sets_up_and_the_second_does_not(project: Path) -> None:
    assert run(project, "make", "doctor") == (0, [*SET_UP, SWEEP])
    assert run(project, "make", "doctor") == (0, [SWEEP])
    assert run(project, "make", "check") == (0, ["ruff check .", "ruff format --check .", "mypy --num-workers 2"])


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_change_of_what_is_installed_sets_up_again(project: Path, changed: str) -> None:
    run(project, "make", "doctor")
    ready = (project / ".venv/.ready").stat().st_mtime
    os.utime(project / changed, (ready + 10, ready + 10))
    assert run(project, "make", "doctor") == (0, [*SET_UP, SWEEP])


def test_a_set_up_that_failed_is_tried_again(project: Path) -> None:
    status, calls = run(project, "make", "doctor", fail="pip install")
    assert status != 0
    assert calls == SET_UP[:-1]
    assert run(project, "make", "doctor") == (0, [*SET_UP, SWEEP])


@pytest.mark.parametrize(
    "target", ["doctor", "test", "check", "bench", "golden", "recall", "recall-functions", "false-go"]
)
def test_every_target_fails_when_its_command_does(project: Path, target: str) -> None:
    assert run(project, "make", target)[0] == 0
    last = run(project, "make", target)[1][-1]
    assert run(project, "make", target, fail=last)[0] != 0


def test_an_interpreter_that_is_too_old_is_refused(project: Path) -> None:
    status, calls = run(project, "make", "doctor", fail="sys.version_info")
    assert (status != 0, calls) == (True, [])


@pytest.mark.parametrize("failing", ["ruff check", "mypy", "pytest -n 3", "pytest -n 2"])
def test_ci_runs_everything_and_fails_when_anything_failed(project: Path, failing: str) -> None:
    assert run(project, ".ci/run")[0] == 0
    status, calls = run(project, ".ci/run", fail=failing)
    assert status != 0
    assert calls[-2:] == TESTS


def test_no_browser_is_installed_where_there_is_one(project: Path) -> None:
    assert not [call for call in run(project, ".ci/run")[1] if call.startswith("apt-get")]
