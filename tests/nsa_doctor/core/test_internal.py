"""What is taken of CPython does what it is taken for; the name of a test that fails says what the doctor loses."""

import inspect
import subprocess
import sys
import threading

import pytest

from nsa.train.internal import numbers_of_threads
from nsa_doctor.core import internal
from nsa_doctor.core.internal import COMPILER, frame_above, frames_of_threads, name_in_python_3


def frame_of_the_caller() -> None:
    def called() -> str:
        return frame_above(1).f_code.co_name

    assert frame_above(0).f_code.co_name == "frame_of_the_caller"
    assert called() == "frame_of_the_caller"


def frames_of_other_threads() -> None:
    ended, started = threading.Event(), threading.Event()

    def waits() -> None:
        started.set()
        ended.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    started.wait()
    assert thread.ident is not None
    frame = frames_of_threads()[thread.ident]
    names = [each.function for each in inspect.getouterframes(frame)]
    known = numbers_of_threads()
    ended.set()
    thread.join()
    assert "waits" in names
    assert {thread.ident, threading.get_ident()} <= set(known)


def names_of_python_2() -> None:
    assert name_in_python_3("__builtin__", "xrange") == ("builtins", "range")
    assert name_in_python_3("copy_reg", "anything") == ("copyreg", "anything")
    assert name_in_python_3("torch", "FloatStorage") == ("torch", "FloatStorage")


def compiler_seen() -> None:
    program = (
        "import importlib, torch; from nsa_doctor.core.internal import COMPILER, may_compile; before = may_compile(); "
        "importlib.import_module(COMPILER); print(before, may_compile())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


LOST = {
    "frame_above": (frame_of_the_caller, "no finding has a line of the subject's source"),
    "frames_of_threads": (frames_of_other_threads, "HNG101, HNG202 and DAT104 do not say where a thread stands"),
    "name_in_python_3": (names_of_python_2, "checkpoints pickled by Python 2 are refused (CKP101)"),
    "may_compile": (compiler_seen, "compiled subjects run compiled under a watcher, and single operations go unseen"),
}


@pytest.mark.parametrize("name", LOST, ids=[f"{name}: else {loss}" for name, (_, loss) in LOST.items()])
def test_a_name_serves(name: str) -> None:
    LOST[name][0]()


def test_every_name_has_its_test() -> None:
    own = {name for name, value in vars(internal).items() if inspect.isfunction(value)}
    assert own == LOST.keys()
    assert COMPILER
