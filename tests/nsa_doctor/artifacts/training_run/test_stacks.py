"""Files of stacks: what stood still, and the line at fault of the thread that held it up."""

import threading

import pytest

from nsa.train.stacks import dump_stacks
from nsa_doctor.artifacts.training_run.record import Dump
from nsa_doctor.artifacts.training_run.stacks import stall_in

THREADS = """\
0x00000000000000aa is nsa watchdog
0x00000000000000bb is {loader}
0x00000000000000cc is MainThread

Current thread 0x00000000000000aa (most recent call first):
  File "/home/me/nsa/train/stacks.py", line 27 in dump_stacks

Thread 0x00000000000000bb (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 706 in readinto
  File "/home/me/corpus/remote.py", line 31 in read_shard
  File "/usr/lib/python3.11/threading.py", line 975 in run

Thread 0x00000000000000cc (most recent call first):
  File "/home/me/.venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 824 in _engine_run_backward
  File "/usr/local/python3.11/threading.py", line 320 in wait
  File "/home/me/train loop.py", line 88 in backward
  File "<string>", line 1 in <module>
"""
PY_SPY = """\
Process 77: python train.py

Thread 77 (active): "MainThread"
    wait (threading.py:320)
    forward (/home/me/model.py:44)
Thread 78 (idle): "data-loader"
    read (/home/me/shards.py:9)
"""


def stall(why, text=THREADS, loader="nsa-data"):
    return stall_in(Dump(name="watchdog_stackdump_1.txt", text=f"{why}\n2026-01-01\n{text.format(loader=loader)}"))


def where(found):
    return found.line and (found.line.file, found.line.line, found.line.function)


def test_of_a_step_the_main_thread_is_to_blame():
    found = stall("forward and backward of step 12 has taken 181.5 s, at 1.0")
    assert (found.stage, found.step, found.seconds) == ("forward and backward", 12, 181.5)
    assert where(found) == ("/home/me/train loop.py", 88, "backward")


def test_of_a_wait_for_data_the_loaders_thread_is_to_blame():
    found = stall("waiting for a batch of step 12 has taken 181.5 s, at 1.0")
    assert where(found) == ("/home/me/corpus/remote.py", 31, "read_shard")


def test_without_a_loaders_thread_the_main_thread_waits_for_itself():
    assert where(stall("waiting for a batch of step 1 has taken 9 s", loader="Thread-7"))[0] == "/home/me/train loop.py"


def test_stacks_without_names_have_the_main_thread_last():
    text = THREADS[THREADS.index("Current") :]
    assert where(stall("a stall", text))[2] == "backward"


def test_what_another_tool_writes_is_read_too():
    assert where(stall("loader of step 3 has taken 5 s", PY_SPY)) == ("/home/me/shards.py", 9, "read")
    assert where(stall("a stall", PY_SPY)) == ("/home/me/model.py", 44, "forward")


@pytest.mark.parametrize("text", ["", "\0\1\2", "Thread 0x\n  File", "Thread 0xaa (most recent call first):\n" * 5000])
def test_rubbish_has_no_line(text):
    assert where(stall("x", text.replace("{", ""))) is None


def test_a_dump_of_this_process_names_this_file(tmp_path):
    never = threading.Event()

    def reads_for_ever():
        never.wait(60)

    thread = threading.Thread(target=reads_for_ever, name="nsa-data", daemon=True)
    thread.start()
    path = dump_stacks(tmp_path, "watchdog_stackdump", "waiting for a batch of step 3 has taken 7.0 s")
    never.set()
    found = stall_in(Dump(name=path.name, text=path.read_text()))
    assert (found.line.file, found.line.function) == (__file__, "reads_for_ever")
