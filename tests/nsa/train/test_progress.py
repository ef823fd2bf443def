"""What a person sees: a line that renews itself on a terminal, plain lines in a log."""

import io

import pytest

from nsa.train.progress import Progress
from nsa.train.record import StepRecord


def record(step, seconds=2.0):
    return StepRecord(
        step=step,
        loss=5.7168,
        learning_rate=1e-7,
        gradient_norm=1.5,
        tokens=14,
        seconds=seconds,
        fetch_seconds=0.1,
        batch="9ae0daaf",
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(stream, steps, log_every=5):
    progress = Progress(stream, 20, log_every)
    for step in steps:
        progress.step(record(step), 3 * 2**20)
    progress.clear()
    return stream.getvalue()


def test_a_log_has_plain_lines_in_the_form_of_the_reports():
    assert printed(io.StringIO(), [1]) == (
        "step 0001/20 | loss 5.7168 | lr 1.00e-07 | grad 1.50 | toks/s 7 | mem 3 MiB | ETA 0:38\n"
    )


def test_a_log_has_the_first_the_last_and_every_so_many():
    lines = printed(io.StringIO(), range(1, 21)).splitlines()
    assert [line[5:9] for line in lines] == ["0001", "0005", "0010", "0015", "0020"]
    assert not any("\r" in line for line in lines)


def test_a_terminal_has_a_line_that_renews_itself(monkeypatch):
    monkeypatch.setattr("nsa.train.progress._SECONDS_BETWEEN", 0.0)
    text = printed(Terminal(), [1, 2, 3, 4, 5])
    assert [f"\rstep {step:04d}" in text for step in (1, 2, 3, 4)] == [False, True, True, True]
    assert [line.split("\r")[-1][:9] for line in text.split("\n") if line.split("\r")[-1].strip()] == [
        "step 0001",
        "step 0005",
    ]


@pytest.mark.parametrize(
    ("seconds", "clock"), [(0.01, "0:00"), (1.0, "0:15"), (5.0, "1:15"), (600.0, "2:30:00")], ids=str
)
def test_the_time_left_is_printed(seconds, clock):
    stream = io.StringIO()
    Progress(stream, 20, 1).step(record(5, seconds), None)
    assert stream.getvalue().endswith(f"| ETA {clock}\n")


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left"), ValueError("closed")], ids=repr)
def test_a_stream_nobody_reads_is_left_alone(error):
    class Broken(io.StringIO):
        def write(self, text):
            raise error

    progress = Progress(Broken(), 20, 1)
    progress.step(record(1), None)
    progress.say("still here")


def test_no_stream_at_all_is_fine():
    progress = Progress(None, 20, 1)
    progress.step(record(1), None)
    progress.clear()
