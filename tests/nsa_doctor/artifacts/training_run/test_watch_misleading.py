"""What would mislead a reader of a log is said, and a log that holds no run yet is not said to be missing."""

import time

import pytest

from nsa_doctor.artifacts.training_run.reading import RunError, read_run
from nsa_doctor.artifacts.training_run.record import Beat
from nsa_doctor.artifacts.training_run.sessions import sessions_of
from tests.nsa_doctor.artifacts.training_run.runs import beats, write_lines, write_table

UNREAD = {  # what training.csv holds, what is said of it
    "empty": ("", "training.csv: is empty"),
    "header": ("step,loss\n", "training.csv: has a header and no row yet"),
    "others": ("foo,bar\n1,2\n", "training.csv: has no column of a step or a loss; it has the columns foo, bar"),
    "text": ("hello\nworld\n", "training.csv: has no column of a step or a loss"),
    "cut": ("step,lo", "training.csv: 1 line is no heartbeat"),
}


def notes_of(tmp_path, rows):
    write_lines(tmp_path / "heartbeat_rank0.jsonl", rows)
    return read_run(tmp_path).notes


@pytest.mark.parametrize(("text", "message"), UNREAD.values(), ids=UNREAD.keys())
def test_a_table_that_is_there_is_not_said_to_be_missing(text, message, tmp_path):
    (tmp_path / "training.csv").write_text(text)
    with pytest.raises(RunError) as caught:
        read_run(tmp_path)
    assert message in str(caught.value)
    assert "no training.csv" not in str(caught.value)


@pytest.mark.parametrize("name", ["training.CSV", "TRAINING.csv", "Metrics.JSONL"])
def test_a_log_is_found_however_its_name_is_written(name, tmp_path):
    if name.lower().endswith("csv"):
        write_table(tmp_path / name, ("step", "loss"), [(1, 2.0), (2, 1.0)])
    else:
        write_lines(tmp_path / name, [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])
    assert read_run(tmp_path).source == name


def test_lines_logged_twice_are_said(tmp_path):
    notes = notes_of(tmp_path, [row for row in beats(60) for _ in range(2)])
    assert notes == (
        "60 lines in a row tell the same step and loss again, the first at step 0: two processes may write into one "
        "log, and speeds are of both",
    )


def test_a_clock_that_goes_back_is_said_with_the_step(tmp_path):
    rows = beats(60)
    late = [{**row, "ts": row["ts"] - 3600} for row in rows[30:]]
    assert notes_of(tmp_path, [*rows[:30], *late]) == (
        "the clock goes back 1 time, by up to 3,599 s at step 30: silences and speeds about it are not to be relied on",
    )


def test_the_time_since_each_start_is_no_clock_that_goes_back(tmp_path):
    first = [{"elapsed": float(n), "step": n, "loss": 2.0 - n / 100} for n in range(30)]
    again = [{"elapsed": float(n), "step": 30 + n, "loss": 1.5 - n / 100} for n in range(30)]
    write_lines(tmp_path / "log.jsonl", [*first, *again])
    assert read_run(tmp_path).notes == ()


@pytest.mark.parametrize(("loss", "is_counted"), [('"high"', True), ('"-"', False), ("null", False), ('"n/a"', False)])
def test_a_loss_that_is_no_number_is_counted(loss, is_counted, tmp_path):
    (tmp_path / "heartbeat_rank0.jsonl").write_text(f'{{"step": 1, "loss": {loss}}}\n{{"step": 2, "loss": 1}}\n')
    counted = "heartbeat_rank0.jsonl: 1 line holds a loss that is no number, and is left out"
    assert (counted in read_run(tmp_path).notes) is is_counted


@pytest.mark.parametrize("step", ["1" + "0" * 400, "NaN", '"x"', "1.5"], ids=["endless", "nan", "text", "half"])
def test_a_step_that_is_none_is_counted(step, tmp_path):
    (tmp_path / "heartbeat_rank0.jsonl").write_text(
        f'{{"step": 1, "loss": 2}}\n{{"step": {step}, "loss": 1}}\n{{"step": 2, "loss": 1}}\n'
    )
    assert read_run(tmp_path).notes == (
        "heartbeat_rank0.jsonl: 1 line names a step that is no whole number below 2^53, and is left out",
    )


def test_a_loss_beyond_computing_is_said(tmp_path):
    rows = beats(20)
    rows[5]["loss"] = 1e308
    assert notes_of(tmp_path, rows) == ("the loss is beyond 1e+150 in 1 line, judged as 1e+150 there",)


def test_an_ordinary_run_has_nothing_to_be_said(tmp_path):
    rows = beats(60)
    rows[40]["ts"] -= 0.2  # clocks are put right
    assert notes_of(tmp_path, rows) == ()


def test_the_lives_of_a_run_are_found_once(tmp_path):
    write_lines(tmp_path / "heartbeat_rank0.jsonl", beats(20, ends=time.time()))
    record = read_run(tmp_path)
    assert sessions_of(record) is sessions_of(record)
    assert isinstance(sessions_of(record)[0].beats[0], Beat)
