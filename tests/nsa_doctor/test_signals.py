"""Before there is work to keep, a stopping signal is one sentence and its exit code."""

import signal
import subprocess
import sys

import pytest

from .conftest import HERE, environment

WHILE_IMPORTING = (
    "from nsa_doctor.signals import leave_on_signals; leave_on_signals(); import os; os.kill(os.getpid(), {})"
)
IN_A_COMMAND = (
    "import os, sys; from nsa_doctor import cli, registry; registry.manuals = lambda: os.kill(os.getpid(), {}); "
    "sys.argv[1:] = ['list']; cli.main()"
)


@pytest.mark.parametrize("program", [WHILE_IMPORTING, IN_A_COMMAND])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_early_signal_is_a_sentence_and_a_code(program: str, number: int, code: int) -> None:
    command = [sys.executable, "-c", program.format(int(number))]
    answer = subprocess.run(command, cwd=HERE, env=environment(), capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (code, "nsa-doctor: interrupted\n")
