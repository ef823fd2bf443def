"""Runs in MLflow's database are read, the newest of them, and what is broken or locked is one sentence."""

import math
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from nsa_doctor.artifacts.training_run.reading import RunError, RunReader, read_run
from tests.nsa_doctor.artifacts.training_run.runs import codes, falling, watched

TABLES = """
CREATE TABLE experiments (experiment_id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(256) NOT NULL);
CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL PRIMARY KEY, name VARCHAR(250), status VARCHAR(9), start_time BIGINT,
    end_time BIGINT, lifecycle_stage VARCHAR(20), experiment_id INTEGER);
CREATE TABLE metrics ("key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
    run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL);
CREATE TABLE latest_metrics ("key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT, step BIGINT NOT NULL,
    is_nan BOOLEAN NOT NULL, run_uuid VARCHAR(32) NOT NULL);
"""
LOSSES = falling(60)
FIRST, SECOND, THIRD = (letter * 32 for letter in "abc")
LARGEST = 1.7976931348623157e308


def database(folder: Path, name: str = "mlflow.db") -> Path:
    with closing(sqlite3.connect(folder / name)) as made:
        made.executescript(TABLES)
    return folder / name


def add_run(
    path: Path, run: str, losses: Sequence[float], *, begins: int = 1_795_480_000_000, stage: str = "active"
) -> None:
    """As mlflow.log_metrics stores them: NaN as 0 and a flag, infinities as the largest number."""
    rows = [("train/grad_norm", 1.0, begins + 500 * step, run, step, 0) for step in range(1, len(losses) + 1)]
    for step, loss in enumerate(losses, start=1):
        value = 0.0 if math.isnan(loss) else math.copysign(min(abs(loss), LARGEST), loss)
        rows.append(("train/loss", value, begins + 500 * step, run, step, math.isnan(loss)))
        rows.append(("system/cpu", 50.0, begins + 500 * step, run, step, 0))
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("INSERT INTO runs VALUES (?, 'x', 'RUNNING', ?, NULL, ?, 0)", (run, begins, stage))
        made.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
        if losses:
            newest = ("train/loss", losses[-1] if math.isfinite(losses[-1]) else 0.0, rows[-1][2], len(losses), 0, run)
            made.execute("INSERT INTO latest_metrics VALUES (?, ?, ?, ?, ?, ?)", newest)


@pytest.mark.parametrize("name", ["mlflow.db", "my runs?.sqlite"])
def test_a_run_is_read_with_steps_losses_and_times(tmp_path: Path, name: str) -> None:
    path = database(tmp_path, name)
    add_run(path, FIRST, LOSSES)
    for place in (path, tmp_path, path / FIRST):
        record = read_run(place)
        assert [beat.step for beat in record.beats] == list(range(1, 61))
        assert [beat.loss for beat in record.beats] == LOSSES
        assert (record.beats[0].ts, record.beats[0].grad_norm) == (1_795_480_000.5, 1.0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_found_at_its_step(tmp_path: Path, loss: float) -> None:
    path = database(tmp_path)
    add_run(path, FIRST, [*LOSSES[:40], loss, *LOSSES[41:]])
    (found,) = watched(path).findings
    assert (found.code, f"the loss is {loss} at step 41" in found.message) == ("TRN201", True)


def test_the_newest_run_with_metrics_counts_and_the_others_are_named(tmp_path: Path) -> None:
    path = database(tmp_path)
    add_run(path, SECOND, LOSSES[:30], begins=1_795_490_000_000)
    add_run(path, FIRST, LOSSES)
    add_run(path, THIRD, [], begins=1_795_500_000_000)
    add_run(path, "d" * 32, LOSSES, begins=1_795_510_000_000, stage="deleted")
    record = read_run(path)
    assert (len(record.beats), record.source) == (30, SECOND)
    assert f"mlflow.db/{SECOND} was read; mlflow.db/{FIRST} may also be of steps: name one" in record.notes[0]
    assert len(read_run(tmp_path / "mlflow.db" / FIRST).beats) == 60


def test_of_a_file_store_the_newest_run_counts_too(tmp_path: Path) -> None:
    for run, count, age in ((FIRST, 50, 1000), (SECOND, 20, 2000)):
        folder = tmp_path / "mlruns" / "1" / run
        (folder / "metrics").mkdir(parents=True)
        (folder / "meta.yaml").write_text("run_id: x\n")
        (folder / "metrics" / "loss").write_text(
            "".join(f"{1795480000000 + n} {3 - n / 99} {n}\n" for n in range(count))
        )
        os.utime(folder, (age, age))
    assert len(read_run(tmp_path / "mlruns").beats) == 20


def test_a_live_run_is_read_on(tmp_path: Path) -> None:
    path = database(tmp_path)
    add_run(path, FIRST, LOSSES[:30])
    reader = RunReader(path)
    assert len(reader.read().beats) == 30
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("INSERT INTO metrics VALUES ('train/loss', 2.0, 1795480015500, ?, 31, 0)", (FIRST,))
    assert reader.read().beats[-1].loss == 2.0


def test_it_is_not_written_to(tmp_path: Path) -> None:
    path = database(tmp_path)
    add_run(path, FIRST, LOSSES)
    before = path.read_bytes()
    path.chmod(0o444)
    read_run(path)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


def test_values_of_another_type_are_left_out(tmp_path: Path) -> None:
    path = database(tmp_path)
    add_run(path, FIRST, LOSSES)
    with closing(sqlite3.connect(path)) as made, made:
        strange = [("train/loss", "x", 1, FIRST, 61, 0), (b"k", 1.0, 1, FIRST, 62, 0), ("loss", 1.0, "t", FIRST, 63, 0)]
        made.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", strange)
    assert codes(watched(path)) == []
    assert max(beat.step or 0 for beat in read_run(path).beats) == 60


ENDLESS = (
    "DROP TABLE latest_metrics; CREATE VIEW latest_metrics AS WITH RECURSIVE n(i) AS "
    "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS timestamp, 'x' AS run_uuid FROM n"
)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("rubbish", "is no database of MLflow that can be read: file is not a database"),
        ("empty", "is a database without MLflow's tables: latest_metrics, metrics, runs"),
        ("torn", "is no database of MLflow that can be read: database disk image is malformed"),
        ("locked", "is no database of MLflow that can be read: database is locked"),
        ("endless", "is a database without MLflow's tables: latest_metrics"),
        ("columns", "is no database of MLflow that can be read: no such column"),
        ("without runs", "holds no run of MLflow with metrics"),
    ],
)
def test_a_database_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sentence: str
) -> None:
    monkeypatch.setattr("nsa_doctor.artifacts.training_run.mlflow_database._SECONDS_TO_WAIT", 0.05)
    path = database(tmp_path)
    add_run(path, FIRST, LOSSES if kind != "without runs" else [])
    with closing(sqlite3.connect(path)) as other:
        match kind:
            case "rubbish":
                path.write_bytes(bytes(range(256)) * 99)
            case "empty":
                path.write_bytes(b"")
            case "torn":
                path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 16384)
            case "locked":
                other.execute("BEGIN EXCLUSIVE")
            case "endless":
                other.executescript(ENDLESS)
            case "columns":
                other.executescript("DROP TABLE runs; CREATE TABLE runs (id)")
        for place in (path, tmp_path):
            with pytest.raises(RunError) as caught:
                read_run(place)
            assert sentence in str(caught.value)
            assert "\n" not in str(caught.value)


def test_a_query_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa_doctor.artifacts.training_run.mlflow_database._MOST_SECONDS", -1.0)
    monkeypatch.setattr("nsa_doctor.artifacts.training_run.mlflow_database._STEPS_BETWEEN_LOOKS", 1)
    path = database(tmp_path)
    add_run(path, FIRST, LOSSES)
    with pytest.raises(RunError, match="can be read: interrupted"):
        read_run(path)


def test_a_run_that_the_database_lacks_is_a_sentence(tmp_path: Path) -> None:
    path = database(tmp_path)
    add_run(path, FIRST, LOSSES)
    with pytest.raises(RunError, match="holds no step"):
        read_run(path / SECOND)
