"""A fork that stands in for a program: how it ends, and what it has of the process it came from."""

import os
import signal
import subprocess
import sys
import time

import pytest

from nsa_doctor.isolation.forked import ForkedProcess


def ended(process: ForkedProcess) -> tuple[int, str]:
    with process.stderr:
        return process.wait(20), process.stderr.read().decode()


def test_it_ends_with_the_call_or_its_traceback():
    assert ended(ForkedProcess(lambda: None, ())) == (0, "")
    code, errors = ended(ForkedProcess(lambda: 1 / 0, ()))
    assert code == 1
    assert errors.endswith("ZeroDivisionError: division by zero\n")
    assert ended(ForkedProcess(lambda: os._exit(7), ())) == (7, "")
    assert ended(ForkedProcess(lambda: sys.exit(3), ())) == (3, "")


def test_a_signal_that_ends_it_is_reported():
    process = ForkedProcess(lambda: time.sleep(60), ())
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.send_signal(signal.SIGKILL)
    assert ended(process) == (-signal.SIGKILL, "")
    process.send_signal(signal.SIGKILL)  # nobody else may have its number by now


def test_it_keeps_the_files_it_is_asked_to_and_leads_a_group_of_its_own(capfd):
    reading, writing = os.pipe()

    def tell() -> None:
        print("into nothing", flush=True)
        open_files = set(map(int, os.listdir("/dev/fd"))) - {0, 1, 2, writing}
        still_open = [number for number in open_files if os.path.exists(f"/dev/fd/{number}")]
        os.write(writing, f"{os.getsid(0) == os.getpid() == os.getpgrp()} {still_open}".encode())

    process = ForkedProcess(tell, (writing,))
    os.close(writing)
    assert ended(process) == (0, "")
    with os.fdopen(reading) as output:
        assert output.read() == "True []"
    assert capfd.readouterr().out == ""


def test_it_answers_signals_as_a_new_program_does():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        process = ForkedProcess(lambda: time.sleep(60), ())
    finally:
        signal.signal(signal.SIGTERM, before)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == -signal.SIGTERM
