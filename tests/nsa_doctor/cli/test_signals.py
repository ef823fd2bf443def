"""Before there is work to keep, a stopping signal is one sentence and its exit code."""

import gc
import signal
import subprocess
import sys

import pytest

from nsa_doctor.core import signals
from tests.nsa_doctor.conftest import HERE, environment

WHILE_IMPORTING = (
    "from nsa_doctor.core.signals import leave_on_signals; leave_on_signals(); import os; os.kill(os.getpid(), {})"
)
IN_A_COMMAND = (
    "import os, sys; from nsa_doctor.cli import main as cli; from nsa_doctor.core import registry; "
    "registry.manuals = lambda: os.kill(os.getpid(), {}); "
    "sys.argv[1:] = ['list']; cli.main()"
)


@pytest.mark.parametrize("program", [WHILE_IMPORTING, IN_A_COMMAND])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_early_signal_is_a_sentence_and_a_code(program: str, number: int, code: int) -> None:
    command = [sys.executable, "-c", program.format(int(number))]
    answer = subprocess.run(command, cwd=HERE, env=environment(), capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (code, "nsa-doctor: interrupted\n")


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_signal_inside_a_callback_of_the_garbage_collector_is_kept_for_later(
    is_inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "_received", [])
    monkeypatch.setattr(signals, "ignore_signals", lambda: None)
    ends: list[type[BaseException] | None] = []

    def handled() -> None:
        try:
            signals._interrupt(signal.SIGINT, sys._getframe())
        except KeyboardInterrupt:
            ends.append(KeyboardInterrupt)
        else:
            ends.append(None)

    def callback(phase: str, info: dict[str, int]) -> None:
        if not ends:
            handled()

    if is_inside:
        gc.callbacks.append(callback)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(callback)
    else:
        handled()
    assert ends == [None if is_inside else KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        signals.raise_if_interrupted()
