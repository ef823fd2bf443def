"""Two processes that train together leave none behind, however their training ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsa_doctor.testing import ranks
from nsa_doctor.testing.ranks import trained_by_two
from nsa_doctor.testing.training_runs import document_of
from tests.nsa_doctor.conftest import environment
from tests.nsa_doctor.engine.test_sweep import wait_for_end

SLEEPS = "import time; time.sleep(600)"
ALONE = """
import json, sys, time
from nsa_doctor.testing import ranks

process = ranks._started(0, ranks._free_port(), json.loads(sys.argv[1]), "")
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started; each sleeps in place of training."""
    processes: list[subprocess.Popen[bytes]] = []
    start: Callable[..., subprocess.Popen[bytes]] = ranks._started

    def kept(*given: Any) -> subprocess.Popen[bytes]:
        processes.append(start(*given))
        return processes[-1]

    monkeypatch.setattr(ranks, "_PROGRAM", SLEEPS)
    monkeypatch.setattr(ranks, "_LONGEST_SECONDS", 0.1)
    monkeypatch.setattr(ranks, "_started", kept)
    return processes


def test_a_time_out_ends_both_processes(started: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        trained_by_two()
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2


def test_an_interruption_ends_both_processes(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = subprocess.Popen.wait

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(process)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained_by_two()
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2


def test_a_second_process_that_cannot_start_ends_the_first(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ranks._started

    def start_one(rank: int, *given: Any) -> subprocess.Popen[bytes]:
        if rank == 1:
            raise OSError("no more processes")
        return start(rank, *given)

    monkeypatch.setattr(ranks, "_started", start_one)
    with pytest.raises(OSError, match="no more processes"):
        trained_by_two()
    assert [process.returncode for process in started] == [-signal.SIGKILL]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel ends orphans on Linux")
def test_a_killed_parent_leaves_no_process(tmp_path: Path) -> None:
    document = document_of(tmp_path / "run", steps=10**6)
    words = [sys.executable, "-c", ALONE, json.dumps(document)]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    has_ended = wait_for_end(child)
    if not has_ended:
        os.kill(child, signal.SIGKILL)
    assert has_ended
