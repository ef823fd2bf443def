"""Before there is work to keep, a stopping signal is one sentence and its exit code."""

import signal
import subprocess
import sys
import time

import pytest

from .conftest import HERE, environment


@pytest.mark.parametrize("seconds", [0.12, 0.25, 0.5])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_early_signal_leaves_no_traceback(seconds: float, number: int, code: int) -> None:
    command = [sys.executable, "-m", "nsa_doctor", "sweep", "--seq", "16", "--quiet"]
    with subprocess.Popen(
        command, cwd=HERE, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        time.sleep(seconds)
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert "Traceback" not in output + errors
    assert "interrupted" in output + errors
