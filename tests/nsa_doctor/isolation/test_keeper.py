"""What a child has started ends with it, wherever it went, and nothing else does."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsa_doctor.isolation.start import Children
from nsa_doctor.isolation.worker_process import WorkerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing that left its session is found")
SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
ROOM = """
import os, subprocess
SLEEPS = {sleeps}
def daemonised():
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen(SLEEPS)  # which waits until it is that command
        os._exit(0)
    os.wait()
def start(how):
    match how:
        case "in its session":
            return subprocess.Popen(SLEEPS).pid
        case "in one of its own":
            return subprocess.Popen(SLEEPS, start_new_session=True).pid
        case "daemonised":
            daemonised()
def open_room(channel):
    return lambda request: {{"pid": [start(request["how"]) for _ in range(request["times"])][0]}}
"""


@pytest.fixture(autouse=True, params=[False, True], ids=["interpreters", "forks"])
def room(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_room_that_starts.py").write_text(ROOM.format(sleeps=SLEEPS))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Children, "are_forked", request.param)


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def started(how: str, times: int = 1, end: Callable[[WorkerProcess], object] = lambda child: None) -> WorkerProcess:
    with WorkerProcess("a_room_that_starts") as child:
        pid = child.ask({"how": how, "times": times}, 60.0)["pid"]
        end(child)
    assert pid is None or not lives(pid)
    return child


@pytest.mark.parametrize("how", ["in one of its own", "daemonised"])
def test_what_left_its_session_is_ended_and_counted_by_its_command(how: str) -> None:
    assert started(how, times=3).ended["left"] == {" ".join(SLEEPS)[:80]: 3}


def test_what_stayed_is_ended_without_a_word() -> None:
    assert started("in its session").ended["left"] == {}


def test_what_was_started_is_ended_when_its_process_is_killed() -> None:
    ended = started("in one of its own", end=WorkerProcess.kill).ended
    assert (ended["status"], sum(ended["left"].values())) == (-signal.SIGKILL, 1)


def test_what_another_process_has_started_lives_on() -> None:
    with subprocess.Popen(SLEEPS, start_new_session=True) as other:
        started("daemonised")
        assert other.poll() is None
        other.kill()


def test_a_keeper_that_was_stopped_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a_room_that_starts.py").write_text(
        "import os, signal\ndef open_room(channel):\n"
        "    os.kill(os.getppid(), signal.SIGSTOP)\n    return lambda request: {'pid': os.getpid()}\n"
    )
    sys.modules.pop("a_room_that_starts", None)
    with WorkerProcess("a_room_that_starts") as child:
        pid = child.ask({}, 60.0)["pid"]
    assert not lives(pid)
    assert child.ended["status"] == -signal.SIGKILL
