"""Logs of other trainers: read whatever they call things, silent where healthy, and never harmed by rubbish."""

import json
import math
import os
import random
import time
from datetime import datetime

import pytest

from nsa_doctor.artifacts.training_run.columns import MappingError, parse_mapping
from nsa_doctor.artifacts.training_run.reading import RunError, RunReader, read_run
from nsa_doctor.core.errors import Caught, UsageError, attempt
from nsa_doctor.core.finding import Decision
from tests.nsa_doctor.artifacts.training_run.runs import beats, codes, falling, watched, write_lines, write_table

NOW = time.time()


def hugging_face(folder):
    entries = [
        {"loss": round(x, 4), "grad_norm": 1.0, "learning_rate": 5e-5 * (1 - n / 50)} for n, x in enumerate(falling(50))
    ]
    history = [{**each, "epoch": n / 50, "step": 10 * (n + 1)} for n, each in enumerate(entries)]
    history.insert(25, {"eval_loss": 3.1, "eval_runtime": 3.0, "epoch": 0.5, "step": 250})
    history.append({"train_runtime": 100.0, "total_flos": 1e15, "train_loss": 33.0, "epoch": 1.0, "step": 500})
    document = {"log_history": history, "max_steps": 500, "global_step": 500, "save_steps": 100}
    (folder / "checkpoint-500").mkdir()
    (folder / "checkpoint-500" / "trainer_state.json").write_text(json.dumps(document))


def lightning(folder):
    rows = []
    for number, loss in enumerate(falling(40)):
        step = 50 * number + 49
        rows += [[step // 250, step, loss, "", ""], [step // 250, step, "", "", 1e-3]]
        rows += [[step // 250, step, "", loss + 0.1, ""]] if step % 250 == 249 else []
    write_table(
        folder / "lightning_logs/version_0/metrics.csv", ["epoch", "step", "train_loss", "val_loss", "lr-AdamW"], rows
    )


def wandb(folder):
    names = ("_step", "_timestamp", "_runtime", "train/loss", "train/learning_rate", "train/grad_norm")
    rows = (dict(zip(names, (n, NOW - 900 + n, n, x, 3e-4, 1.0), strict=True)) for n, x in enumerate(falling(300)))
    write_lines(folder / "wandb-history.jsonl", rows)


def nested(folder):
    write_lines(
        folder / "log.ndjson", ({"step": n, "train": {"loss": x, "lr": 1e-3}} for n, x in enumerate(falling(200)))
    )


def keras(folder):
    write_table(folder / "history.csv", ["epoch", "loss", "val_loss"], ([n, 2 + 3 / (n + 1), 2.1] for n in range(30)))


def megatron(folder):
    rows = ([10 * n, f"{x:.4E}", "1.0E-4", 1.0] for n, x in enumerate(falling(60)))
    write_table(folder / "log.tsv", ["iteration", "lm loss", "learning rate", "grad norm"], rows, "\t")


def steps_of_each_epoch(folder):
    write_lines(
        folder / "log.jsonl", ({"epoch": n // 100, "step": n % 100, "loss": x} for n, x in enumerate(falling(500)))
    )


def seconds_of_each_step(folder):
    chance = random.Random(0)
    rows = ([n, x, 0.3 + 0.1 * chance.random()] for n, x in enumerate(falling(200)))
    write_table(folder / "log.csv", ["step", "loss", "time"], rows)


def dates(folder):
    rows = (
        {"step": n, "loss": x, "time": datetime.fromtimestamp(NOW - 900 + n).isoformat()}
        for n, x in enumerate(falling(200))
    )
    write_lines(folder / "log.jsonl", rows)


def slow_start_and_evaluations(folder):
    now, rows = NOW - 9000, []
    for n, loss in enumerate(falling(600)):
        now += 1 + 900 * (n == 1) + 400 * (n % 200 == 199)
        rows.append({"step": n, "loss": loss, "ts": now})
    write_lines(folder / "log.jsonl", rows)


def resumed_with_other_batches(folder):
    old, new = falling(220, noise=0.2), falling(200, start=200, seed=1, noise=0.2)
    rows = [{"step": n, "loss": x} for n, x in enumerate(old)] + [
        {"step": 200 + n, "loss": x} for n, x in enumerate(new)
    ]
    write_lines(folder / "log.jsonl", rows)


def losses_of_each_rank(folder):
    for rank in range(4):
        rows = ({"step": n, "loss": x, "ts": NOW - 900 + n} for n, x in enumerate(falling(200, seed=rank)))
        write_lines(folder / f"metrics_rank{rank}.jsonl", rows)


def first_rank_of_eight(folder):
    write_lines(folder / "heartbeat_rank0.jsonl", beats(200))
    (folder / "env.json").write_text('{"world_size": 8}')


def header_written_again(folder):
    rows = [[n, x] for n, x in enumerate(falling(200))]
    write_table(folder / "log.csv", ["step", "loss"], [*rows[:100], ["step", "loss"], *rows[100:]])


def heartbeats_that_say_they_are_done(folder):
    old = beats(200, ends=NOW - 90_000)
    write_lines(folder / "heartbeat_rank0.jsonl", [*old, {"ts": NOW - 89_999, "msg": "training complete"}])


HEALTHY = (
    *(hugging_face, lightning, wandb, nested, keras, megatron, steps_of_each_epoch, seconds_of_each_step, dates),
    *(slow_start_and_evaluations, resumed_with_other_batches, losses_of_each_rank, first_rank_of_eight),
    *(header_written_again, heartbeats_that_say_they_are_done),
)


@pytest.mark.parametrize("write", HEALTHY, ids=lambda write: write.__name__)
def test_a_healthy_log_of_another_trainer_is_read_and_raises_no_alarm(write, tmp_path):
    write(tmp_path)
    assert len(read_run(tmp_path).steps) >= 30
    report = watched(tmp_path)
    assert (codes(report), report.decision) == ([], Decision.GO)


def test_quantities_are_where_synonyms_say(tmp_path):
    wandb(tmp_path)
    beat = read_run(tmp_path).beats[7]
    assert (beat.step, beat.grad_norm, beat.learning_rate) == (7, 1.0, 3e-4)
    assert beat.loss == falling(300)[7]
    assert read_run(tmp_path).clock == "absolute"


def test_held_out_losses_are_no_steps_and_a_summary_is_no_loss(tmp_path):
    hugging_face(tmp_path)
    record = read_run(tmp_path)
    assert [(each.step, each.loss) for each in record.evaluations] == [(250, 3.1)]
    assert max(beat.loss for beat in record.steps) < 10
    assert record.declared("max_steps") == 500


def test_lines_of_one_step_are_one_heartbeat(tmp_path):
    lightning(tmp_path)
    assert [beat.learning_rate for beat in read_run(tmp_path).beats] == [1e-3] * 40


def test_a_mapping_goes_before_what_a_log_calls_its_columns(tmp_path):
    path = write_table(tmp_path / "log.csv", ["step", "loss", "n", "Train Loss (smoothed)"], [[1, 9.0, 10, 2.0]])
    (beat,) = read_run(path, parse_mapping(["step=n,loss=train_loss_smoothed"])).beats
    assert (beat.step, beat.loss) == (10, 2.0)


@pytest.mark.parametrize(
    ("first", "mapping", "steps"),
    [
        (["1", "1700000000", "2.5"], "step=1,loss=3", [1, 2]),
        (["2026-01-01T00:00:00", "1", "2.5"], "ts=1,step=2,loss=3", [1, 2]),
        (["train", "1", "2.5"], "step=2,loss=3", [1, 2]),
        (["step", "ts", "loss"], "", [2]),
        (["0", "1", "2"], "step=0,loss=2", [2]),
    ],
    ids=["numbers", "a date", "a word, with columns by number", "names", "numbers from 0 as names"],
)
def test_a_table_without_names_is_mapped_by_the_numbers_of_its_columns(tmp_path, first, mapping, steps):
    second = [{"1": "2", "1700000000": "1700000002", "0": "2", "step": "2"}.get(cell, cell) for cell in first]
    path = write_table(tmp_path / "log.csv", first, [["2" if cell == "ts" else cell for cell in second]])
    assert [beat.step for beat in read_run(path, parse_mapping([mapping] if mapping else [])).beats] == steps


def test_a_table_without_names_says_what_its_columns_are_called(tmp_path):
    path = write_table(tmp_path / "log.csv", ["1", "1700000000", "2.5"], [])
    with pytest.raises(RunError, match="it has the columns 1, 2, 3: say with --map"):
        read_run(path)


@pytest.mark.parametrize("unit", [1, 1e3, 1e6, 1e9], ids=["s", "ms", "us", "ns"])
def test_a_time_since_the_epoch_may_have_any_unit(tmp_path, unit):
    write_lines(tmp_path / "log.jsonl", [{"step": 1, "loss": 2.0, "timestamp": int(1.7e9 * unit)}])
    assert read_run(tmp_path).beats[0].ts == pytest.approx(1.7e9)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, "NaN", "nan", "Infinity", "null"], ids=str)
def test_a_loss_that_is_no_number_is_found_however_it_is_written(tmp_path, loss):
    rows = [{"step": n, "loss": x} for n, x in enumerate(falling(100))]
    rows[70]["loss"] = loss
    write_lines(tmp_path / "log.jsonl", rows)
    assert codes(watched(tmp_path)) == ["TRN201"]


def test_without_a_time_nothing_is_said_of_liveness(tmp_path):
    keras(tmp_path)
    reasons = {result.code: result.reason for result in watched(tmp_path, select="TRN101,TRN102").results}
    assert "has no time" in reasons["TRN101"]
    assert "has no time" in reasons["TRN102"]


@pytest.mark.parametrize(
    ("words", "made"),
    [(["a"], None), (["=a"], None), (["step="], None), (["lr=x", "learning_rate=x"], {"learning_rate": "x"}), ([], {})],
)
def test_a_mapping_is_read_or_refused(words, made):
    if made is None:
        with pytest.raises(MappingError):
            parse_mapping(words)
    else:
        assert parse_mapping(words) == made


RUBBISH = {
    "binary": bytes(range(256)) * 300,
    "zeros": b"\0" * 100_000,
    "deep": b'{"a":' * 50_000 + b"\n",
    "long": b'{"step": 1, "loss": "' + b"9" * 300_000 + b'"}\n',
    "huge numbers": b'{"step": ' + b"9" * 5000 + b', "loss": 1e999, "ts": -1e400, "rank": 1e300}\n',
    "lists": b'[1, 2]\n{"step": [1], "loss": {"a": {"b": 1}}, "ts": {}, "msg": 7}\nnull\n"x"\n',
    "cut": b'{"step": 1, "loss": 2.0, "ts": 17',
    "columns": b",".join(b"c%d" % n for n in range(9000)) + b"\n" + b"1," * 9000 + b"\n",
    "same columns": b"step,step,loss,loss\n1,2,3,4\n",
    "no rows": b"step,loss\n",
    "quotes": b'step,loss\n"1\n2,"3\n',
    "utf-16": "step,loss\n1,2\n".encode("utf-16"),
}


@pytest.mark.parametrize(
    "name",
    ["heartbeat_rank0.jsonl", "log.jsonl", "training.csv", "log.csv", "trainer_state.json", "train.log", "mlflow.db"],
)
@pytest.mark.parametrize("kind", RUBBISH)
def test_rubbish_is_a_sentence_or_no_alarm_and_never_a_crash(tmp_path, name, kind):
    (tmp_path / name).write_bytes(RUBBISH[kind])
    answer = attempt(lambda: watched(tmp_path))
    if isinstance(answer, Caught):
        assert isinstance(answer.error, UsageError)
        assert str(answer.error).isprintable()
    else:
        assert not [result.reason for result in answer.results if result.verdict == "CRASH"]


@pytest.mark.parametrize("name", ["heartbeat_rank0.jsonl", "log.jsonl", "env.json", "metrics.json", "evaluations.csv"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "endless", "unreadable"])
def test_what_is_no_file_is_not_waited_for(tmp_path, name, kind):
    path = tmp_path / name
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case "unreadable":
            path.symlink_to("/proc/self/mem")
    write_table(tmp_path / "training.csv", ["step", "loss"], enumerate(falling(100)))
    assert codes(watched(tmp_path)) == []
    assert len(read_run(tmp_path).steps) == 100


def test_a_file_of_gigabytes_is_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr("nsa_doctor.artifacts.training_run.growing_lines.LARGEST_FILE", 1 << 20)
    path = write_lines(tmp_path / "log.jsonl", beats(100))
    os.truncate(path, 3 << 30)
    record = read_run(tmp_path)
    assert len(record.steps) == 100
    assert any("only the first 1 MiB were read" in note for note in record.notes)


def test_more_than_a_million_lines_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("nsa_doctor.artifacts.training_run.growing_lines.MOST_LINES", 50)
    write_lines(tmp_path / "log.jsonl", beats(100))
    assert len(read_run(tmp_path).steps) == 50


# A file that changes under the reader.


def test_what_was_read_is_not_read_again_and_what_is_added_is(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "heartbeat_rank0.jsonl", beats(50))
    reader = RunReader(tmp_path)
    assert len(reader.read().beats) == 50
    monkeypatch.setattr(json, "loads", lambda line, loads=json.loads: parsed.append(line) or loads(line))
    parsed: list[str] = []
    with path.open("a") as file:
        file.write('{"step": 50, "loss": 2.0}\n{"step": 51, "lo')
    assert len(reader.read().beats) == 51
    with path.open("a") as file:
        file.write('ss": 2.5}\n')
    assert reader.read().beats[-1].loss == 2.5
    assert len([line for line in parsed if "step" in str(line)]) <= 6


def test_a_table_that_is_cut_back_and_grows_on_is_read_anew(tmp_path):
    path = tmp_path / "training.csv"
    reader = RunReader(tmp_path)
    for rows in (falling(50), falling(20, seed=1), falling(90, seed=2)):
        write_table(path.with_suffix(".tmp"), ["step", "loss"], enumerate(rows)).replace(path)
        assert [beat.loss for beat in reader.read().steps] == rows


def test_a_file_that_is_cut_back_in_place_and_grown_past_is_read_anew(tmp_path):
    path = write_table(tmp_path / "training.csv", ["step", "loss"], enumerate(falling(50)))
    reader = RunReader(tmp_path)
    reader.read()
    write_table(path, ["step", "loss"], enumerate(falling(99, seed=3)))
    assert [beat.loss for beat in reader.read().steps] == falling(99, seed=3)


def test_a_file_that_vanishes_and_comes_back_is_read_again(tmp_path):
    path = write_lines(tmp_path / "log.jsonl", beats(50))
    reader = RunReader(tmp_path)
    reader.read()
    path.unlink()
    with pytest.raises(RunError):
        reader.read()
    write_lines(path, beats(60))
    assert len(reader.read().steps) == 60


# Checkpoints of trainers that write them in place.


@pytest.mark.parametrize(
    ("step", "content", "is_reported"), [(100, b"", True), (100, b"x", False), (199, b"", False), (150, None, False)]
)
def test_a_checkpoint_that_is_being_written_is_none_that_is_lost(tmp_path, step, content, is_reported):
    write_lines(tmp_path / "heartbeat_rank0.jsonl", beats(200))
    (tmp_path / f"checkpoint-{step}").mkdir()
    if content is not None:
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_bytes(content)
    assert codes(watched(tmp_path)) == ["TRN104"] * is_reported


def test_a_chart_that_wandb_exports_is_read(tmp_path):
    names = ['"Step"', *(f'"swift - oak-7 - train/loss{kind}"' for kind in ("", "__MIN", "__MAX"))]
    rows = [[step, loss, loss, loss] for step, loss in enumerate(falling(80))]
    report = watched(write_table(tmp_path / "wandb_export.csv", names, rows))
    assert report.decision is Decision.GO
    faulty = [[step, loss if step < 60 else "nan", loss, loss] for step, loss, *_ in rows]
    assert codes(watched(write_table(tmp_path / "faulty.csv", names, faulty))) == ["TRN201"]
