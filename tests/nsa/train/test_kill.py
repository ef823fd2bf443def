"""SIGKILL at a few random moments costs nothing; `python -m tests.kill_test --kills 100` tries many."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.full
def test_a_run_killed_at_random_moments_ends_as_one_never_interrupted():
    command = [sys.executable, "-m", "tests.kill_test", "--kills", "3", "--steps", "12", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("3 kills (")
