"""Whatever is done to the way between parent and child, each request has one answer or one failure that says why."""

import os
import sys
from pathlib import Path

import pytest

from nsa_doctor.core.errors import InternalError
from nsa_doctor.isolation.failures import WorkerDiedError, WorkerHungError
from nsa_doctor.isolation.start import Children
from nsa_doctor.isolation.worker_process import WorkerProcess

ROOM = """
import os, resource, signal, sys
def closes():
    os.closerange(3, 256)
def closes_and_opens():
    os.closerange(3, 256)
    return [os.open(os.environ["VICTIM"], os.O_RDWR | os.O_CREAT) for _ in range(60)]
def writes():
    for number in range(3, 256):
        try:
            os.write(number, b"hello\\n")
        except OSError:
            pass
def is_another_by_name():
    os.getpid = lambda: 1
def forks():
    os.fork()
def stops():
    os.kill(os.getpid(), signal.SIGSTOP)
def leaves():
    os._exit(0)
def kills_its_group():
    os.kill(0, signal.SIGKILL)
def lowers():
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    open(os.devnull)
def breaks():
    open("/nowhere/at/all")
def says_nothing():
    for number in (0, 1, 2):
        os.close(number)
def open_room(channel):
    def answer(request):
        globals()[request["do"]]()
        return {"met": request["do"]}
    return answer
"""


@pytest.fixture(autouse=True, params=[False, True], ids=["interpreters", "forks"])
def room(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_rude_room.py").write_text(ROOM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("VICTIM", str(tmp_path / "victim"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_rude_room", raising=False)
    monkeypatch.setattr(Children, "are_forked", request.param)


def death_of(do: str) -> str:
    with WorkerProcess("a_rude_room") as child, pytest.raises(WorkerDiedError) as failure:
        child.ask({"do": do}, 60.0)
    return str(failure.value)


@pytest.mark.parametrize(
    ("do", "said"),
    [
        ("closes", "the process closed file descriptors that are not its own, and with them the way its answers come"),
        ("writes", "the process wrote into a file descriptor that is not its own, where its answers are read"),
        ("leaves", "the process ended with exit code 0"),
        ("lowers", "the process lowered RLIMIT_NOFILE to 3, with which nothing else works in it"),
    ],
)
def test_what_took_the_way_for_answers_is_the_cause(do: str, said: str) -> None:
    assert death_of(do) == said


def test_a_group_that_ends_itself_takes_no_other_process_with_it() -> None:
    assert death_of("kills_its_group").startswith("the process died by signal 9")


def test_nothing_is_written_into_a_file_that_the_subject_has_opened_instead() -> None:
    assert death_of("closes_and_opens").startswith("the process closed file descriptors")
    assert Path(os.environ["VICTIM"]).read_bytes() == b""


def test_a_fork_that_comes_back_from_both_sides_is_answered_for_once() -> None:
    with WorkerProcess("a_rude_room") as child:
        assert [child.ask({"do": do}, 60.0)["met"] for do in ("forks", "says_nothing", "forks")] == [
            "forks",
            "says_nothing",
            "forks",
        ]


def test_what_a_process_says_its_number_is_changes_nothing() -> None:
    with WorkerProcess("a_rude_room") as child:
        assert [child.ask({"do": "is_another_by_name"}, 60.0)["met"] for _ in range(2)] == ["is_another_by_name"] * 2


def test_a_process_that_stops_itself_is_a_hang() -> None:
    with WorkerProcess("a_rude_room") as child, pytest.raises(WorkerHungError, match=r"no answer within 0\.3 s"):
        child.ask({"do": "stops", "startup_seconds": 60.0, "making_seconds": 0.3}, 60.0)


def test_what_breaks_with_every_limit_as_it_was_is_an_internal_error() -> None:
    with WorkerProcess("a_rude_room") as child, pytest.raises(InternalError, match="FileNotFoundError"):
        child.ask({"do": "breaks"}, 60.0)
