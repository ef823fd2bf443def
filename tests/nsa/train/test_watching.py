"""Stalls, signals and stacks: what hangs is named with the line it hangs in, and what is asked to stop saves first."""

import os
import re
import signal
import threading
import time

import pytest

from nsa.train import TrainError
from nsa.train.signals import Signals
from nsa.train.stacks import dump_stacks
from nsa.train.watchdog import Watchdog

NEVER = 60.0


def hang_here(batch_number, at=3, until=None):
    """Holds the loader up at one batch until the event is set."""
    if batch_number == at:
        assert until.wait(NEVER)


def dumps(folder, prefix):
    return sorted(path for path in folder.iterdir() if path.name.startswith(f"{prefix}_"))


# The watchdog.


def test_a_stage_that_takes_too_long_is_reported_with_its_seconds():
    stalls, has_stalled = [], threading.Event()

    def note(stage, seconds):
        stalls.append((stage, seconds))
        has_stalled.set()

    with Watchdog(0.05, note) as watchdog:
        watchdog.enter("the step")
        assert has_stalled.wait(NEVER)
    assert stalls[0][0] == "the step"
    assert stalls[0][1] >= 0.05


def test_stages_that_end_in_time_are_not_reported():
    stalls = []
    with Watchdog(NEVER, lambda *facts: stalls.append(facts)) as watchdog:
        for stage in range(100):
            watchdog.enter(str(stage))
    assert stalls == []


def test_one_stall_is_reported_again_only_when_twice_as_long_has_passed():
    stalls, is_enough = [], threading.Event()

    def note(_stage, seconds):
        stalls.append(seconds)
        if len(stalls) == 3:
            is_enough.set()

    with Watchdog(0.02, note) as watchdog:
        watchdog.enter("the step")
        assert is_enough.wait(NEVER)
    assert stalls[1] >= 2 * stalls[0]
    assert stalls[2] >= 2 * stalls[1]


def test_a_stage_may_be_given_longer():
    stalls = []
    with Watchdog(0.01, lambda *facts: stalls.append(facts)) as watchdog:
        watchdog.enter("compiling", NEVER)
        time.sleep(0.05)
    assert stalls == []


def test_a_loader_that_stalls_leaves_the_line_it_stands_in(run, beats):
    until = threading.Event()

    def wait(number):
        if number == 3:
            threading.Timer(0.45, until.set).start()
        hang_here(number, until=until)

    folder = run(watchdog_seconds=0.3, faults={"wait": wait}, eval_batches=0)
    (path,) = dumps(folder, "watchdog_stackdump")
    assert re.fullmatch(r"watchdog_stackdump_\d{10,}\.txt", path.name)
    text = path.read_text()
    assert "waiting for a batch of step 4 has taken 0." in text
    assert "in hang_here" in text
    (stall,) = [beat for beat in beats(folder) if beat["msg"].startswith("stalled")]
    assert (stall["step"], path.name in stall["msg"]) == (4, True)


def test_a_healthy_run_leaves_no_stacks(run):
    folder = run()
    assert dumps(folder, "watchdog_stackdump") + dumps(folder, "stackdump") == []


def test_two_dumps_in_one_second_have_two_names(tmp_path):
    assert len({dump_stacks(tmp_path, "stackdump", "why") for _ in range(3)}) == 3


def test_stacks_name_every_thread(tmp_path):
    until = threading.Event()
    thread = threading.Thread(target=hang_here, args=(3,), kwargs={"until": until}, name="the loader's")
    thread.start()
    text = dump_stacks(tmp_path, "stackdump", "someone asked").read_text()
    until.set()
    thread.join()
    assert text.startswith("someone asked\n")
    assert "is the loader's" in text
    assert "in hang_here" in text
    assert "in test_stacks_name_every_thread" in text


def test_a_folder_that_cannot_be_written_to_costs_the_dump_alone(tmp_path):
    assert dump_stacks(tmp_path / "nowhere", "stackdump", "why") is None


# Signals, to this very process.


def send(number, at):
    def wait(batch_number):
        if batch_number == at:
            os.kill(os.getpid(), number)
            time.sleep(0.2)  # the thread that listens for signals hears it before the step ends, on busy cores too

    return {"wait": wait}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_the_stacks_saves_and_leaves_with_its_code(number, run, losses, tmp_path):
    with pytest.raises(TrainError) as caught:
        run(faults=send(number, at=2))
    folder = tmp_path / "run"
    assert caught.value.code == 128 + number
    assert f"stopped by {number.name} after step 3, and saved: go on with --resume auto" == str(caught.value)
    (path,) = dumps(folder, "stackdump")
    assert re.fullmatch(r"stackdump_\d{10,}\.txt", path.name)
    assert f"received {number.name}" in path.read_text()
    assert [each.name for each in (folder / "checkpoints").iterdir()] == ["step_00000003"]
    assert losses(run(resume="auto")) == losses(run(out_dir=str(tmp_path / "whole")))


def test_the_other_signal_writes_the_stacks_and_the_run_goes_on(run, losses, tmp_path):
    folder = run(faults=send(signal.SIGUSR1, at=2))
    (path,) = dumps(folder, "stackdump")
    assert "in wait" in path.read_text() or "in _listen" in path.read_text()
    assert losses(folder) == losses(run(out_dir=str(tmp_path / "whole")))


def test_the_handlers_of_before_are_there_again_afterwards(run):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    run()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)] == before


def test_a_signal_is_answered_while_the_main_thread_waits():
    answered = threading.Event()
    with Signals(lambda _number: answered.set(), NEVER) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert answered.wait(NEVER)
        assert signals.requested == signal.SIGTERM


def test_outside_the_main_thread_no_handler_is_touched(run, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert (tmp_path / "run" / "model.pt").exists()
    assert signal.getsignal(signal.SIGTERM) is before
