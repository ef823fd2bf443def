"""Second interpreters as forks of one for each hash seed, which has imported torch and the doctor and no subject."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from tests.nsa_doctor.conftest import ROOT

_PROGRAM = """
import os, signal, sys
sys.path.insert(0, {root!r})
import torch
import nsa_doctor.adapters.load, nsa_doctor.probes.gradients.gradient_of_call, nsa_doctor.worker.handlers
from nsa_doctor.worker.second_main import main
for line in sys.stdin:
    folder, seconds = line.split()
    number = os.fork()
    if not number:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            os.dup2(nothing, stream)
        signal.alarm(int(seconds))  # as who asks ends it
        sys.argv[1:] = [folder]
        code = 1
        try:
            main()
            code = 0
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
"""
_LATE = -14  # by the alarm


class WarmInterpreters:
    """Stands for `subprocess.run` where second interpreters are started, until it is closed."""

    def __init__(self) -> None:
        self._started: dict[str, subprocess.Popen[str]] = {}

    def run(self, command: Sequence[str], *, timeout: float, **_: Any) -> None:
        """Run in a fork what the command would; raises as `subprocess.run` does."""
        (_, hash_seed, *_, folder), seconds = command, max(1, int(timeout))
        if hash_seed not in self._started:
            program = _PROGRAM.format(root=str(ROOT))
            self._started[hash_seed] = subprocess.Popen(
                ["env", hash_seed, sys.executable, "-P", "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        asked, answered = _streams(self._started[hash_seed])
        asked.write(f"{folder} {seconds}\n")
        asked.flush()
        code = int(answered.readline())
        if code == _LATE:
            raise subprocess.TimeoutExpired(list(command), timeout)
        if code:
            raise subprocess.CalledProcessError(code, list(command))

    def close(self) -> None:
        """End all that was started."""
        for process in self._started.values():
            asked, answered = _streams(process)
            asked.close()
            process.wait()
            answered.close()


def _streams(process: subprocess.Popen[str]) -> tuple[TextIO, TextIO]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
