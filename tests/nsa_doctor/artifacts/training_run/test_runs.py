"""Training runs as their folders show them: read, measured, and matched with a subject."""

import json
import math
import os
from itertools import pairwise

import pytest

from nsa_doctor.artifacts.training_run.facts import facts_of
from nsa_doctor.artifacts.training_run.matching import mismatches, model_configuration
from nsa_doctor.artifacts.training_run.numbers import numbers_of
from nsa_doctor.artifacts.training_run.reading import RunError, read_run
from nsa_doctor.core.measures import MEASURES

MODEL = {"dim": 64, "n_heads": 4, "n_kv_groups": 2, "d_k": 16, "d_v": 16}


def beat(step, **parts):
    return {"ts": 1000.0 + step, "step": step, "loss": 5.0 - 0.01 * step, "toks_per_s": 400.0, **parts}


@pytest.fixture
def write(tmp_path):
    def writing(beats, environment=None, rank=0):
        lines = [each if isinstance(each, str) else json.dumps(each) for each in beats]
        (tmp_path / f"heartbeat_rank{rank}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        if environment is not None:
            (tmp_path / "env.json").write_text(json.dumps(environment))
        return tmp_path

    return writing


def numbers(folder):
    return numbers_of(read_run(folder))


def test_every_measure_has_a_number(write):
    assert set(numbers(write([beat(1)]))) == set(MEASURES)


def test_a_healthy_run_in_numbers(write):
    beats = [beat(step, dt_fetch_s=12.0 if step == 1 else 0.1, gpu_mem_alloc=1e8) for step in range(1, 201)]
    folder = write(beats)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step_00000200").mkdir()
    found = numbers(folder)
    assert found["steps"] == 200
    assert found["tokens_per_second"] == 400
    assert found["loss_ratio"] == pytest.approx(3.095 / 4.895)
    assert found["first_batch_seconds"] == 12
    assert found["longest_silence_seconds"] == 1
    assert found["memory_growth"] == 0
    assert found["checkpoints"] == 1
    assert found["watchdog_dumps"] == found["resumes"] == found["nonfinite_losses"] == 0


def test_what_the_folder_does_not_show_is_none(write):
    found = numbers(write([{"step": 1}, {"step": 2}]))
    assert [found[name] for name in ("tokens_per_second", "loss_ratio", "memory_growth", "first_batch_seconds")] == [
        None
    ] * 4


def test_the_slow_first_steps_do_not_count(write):
    beats = [beat(step, toks_per_s=1.0 if step <= 10 else 500.0) for step in range(1, 101)]
    assert numbers(write(beats))["tokens_per_second"] == 500


def test_losses_that_are_not_finite_are_counted_and_spoil_the_ratio(write):
    healthy = [beat(step) for step in range(1, 10)]
    found = numbers(write([*healthy, '{"step": 10, "loss": NaN}', '{"step": 11, "loss": Infinity}']))
    assert found["nonfinite_losses"] == 2
    assert not math.isfinite(found["loss_ratio"])


def test_memory_that_grows_to_the_end_shows(write):
    beats = [beat(step, gpu_mem_alloc=69e6 + step * 5e5) for step in range(1, 201)]
    assert numbers(write(beats))["memory_growth"] > 0.1


def test_memory_that_reaches_a_plateau_does_not(write):
    beats = [beat(step, gpu_mem_alloc=min(step, 20) * 1e6) for step in range(1, 201)]
    assert numbers(write(beats))["memory_growth"] == 0


def test_a_resume_counts_once_a_step_was_made(write):
    started, resumed = {"ts": 0.0, "msg": "started"}, {"ts": 9e5, "msg": "resumed from step_00000002"}
    assert numbers(write([started, beat(1), beat(2), resumed, beat(3)]))["resumes"] == 1
    assert numbers(write([started, beat(1), beat(2), resumed]))["resumes"] == 0


def test_the_time_a_run_was_down_is_no_silence(write):
    found = numbers(write([beat(1), beat(2), {"ts": 9e5, "msg": "resumed from 2"}, {**beat(3), "ts": 9e5 + 4}]))
    assert found["longest_silence_seconds"] == 4


def test_a_last_line_cut_short_costs_that_line_alone(write):
    run = read_run(write([beat(1), '{"step": 2, "lo']))
    assert len(run.beats) == 1
    assert run.notes == ("heartbeat_rank0.jsonl: 1 line is no heartbeat and left out",)


def test_a_loss_that_is_not_finite_counts_on_any_rank_and_the_ratio_is_that_of_rank_0(write):
    write([beat(step) for step in range(1, 21)])
    found = numbers(write([beat(1, loss=math.nan)], rank=1))
    assert found["nonfinite_losses"] == 1
    assert math.isfinite(found["loss_ratio"])


def test_steps_are_those_that_were_made(write):
    assert numbers(write([beat(step) for step in range(9_998, 10_002)]))["steps"] == 4
    assert numbers(write([beat(step) for step in range(20, 201, 20)]))["steps"] == 200
    assert numbers(write([beat(7)]))["steps"] == 1


def test_a_step_whose_loss_is_null_is_one_that_is_not_finite(write):
    assert numbers(write([beat(1), beat(2, loss=None)]))["nonfinite_losses"] == 1
    assert numbers(write([beat(1), {"ts": 2.0, "step": 1, "msg": "saved", "loss": None}]))["nonfinite_losses"] == 0


def test_a_few_losses_are_no_trend(write):
    assert numbers(write([beat(1), beat(2)]))["loss_ratio"] is None


@pytest.mark.parametrize(
    ("name", "count"),
    [("models", 0), ("steps", 0), ("modeling.py", 0), ("step_200", 1), ("checkpoint-7", 1), ("model.pt", 1)],
)
def test_what_is_called_like_a_checkpoint_is_one(write, name, count):
    folder = write([beat(1)])
    (folder / name).mkdir()
    (folder / name / "model.safetensors").write_bytes(b"x")
    assert numbers(folder)["checkpoints"] == count


def test_a_table_serves_where_there_are_no_heartbeats(tmp_path):
    (tmp_path / "training.csv").write_text("step,loss,lr,toks_per_s\n1,5.5,1e-4,300\n2,nan,1e-4,300\n")
    found = numbers(tmp_path)
    assert (found["steps"], found["nonfinite_losses"], found["tokens_per_second"]) == (2, 1, 300)


@pytest.mark.parametrize(
    "line", ["[1, 2]", "null", "{" * 5000, '{"step": 1e400}', '{"step": true}', '{"step": {"a": 1}}', "\x00", '"x"']
)
def test_a_line_of_rubbish_is_no_heartbeat_with_a_step(write, line):
    assert read_run(write([line, beat(7)])).beats[-1].step == 7
    assert numbers(write([line, *(beat(step) for step in range(1, 8))]))["steps"] == 7


@pytest.mark.parametrize("name", ["missing", "file", "empty"])
def test_a_folder_that_holds_no_run_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=name):
        read_run(tmp_path / name)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "heartbeat_rank0.jsonl")
    (tmp_path / "env.json").write_text("{}")
    (tmp_path / "training.csv").write_text("step,loss\n1,2\n")
    assert read_run(tmp_path).steps[0].loss == 2


def test_facts_to_draw_are_plain_and_of_one_length(write):
    facts = facts_of(read_run(write([beat(step) for step in range(1, 20_001)])))
    assert {len(values) for values in facts["series"].values()} == {5000}
    json.dumps(facts)


SUBJECT = {
    "name": "nsa (mine)",
    "identity": {"configuration": model_configuration({"model": MODEL}), "configuration_hash": "", "flags": {}},
}


def subject(**parts):
    from nsa_doctor.core.identity import digest

    identity = {**SUBJECT["identity"], "configuration_hash": digest(SUBJECT["identity"]["configuration"]), **parts}
    return {**SUBJECT, "identity": identity}


def test_a_run_of_the_same_configuration_is_evidence(write):
    run = read_run(write([beat(1)], {"config": {"model": MODEL, "train": {"steps": 7}}}))
    assert list(mismatches(run, subject())) == []


def test_a_run_of_another_configuration_is_not_and_both_are_named(write):
    run = read_run(write([beat(1)], {"config": {"model": {**MODEL, "dim": 128}}}))
    (sentence,) = mismatches(run, subject())
    assert "nsa (mine)" in sentence
    assert "dim 128 and not 64" in sentence


def test_a_run_that_does_not_say_what_it_ran_is_no_evidence(write):
    (sentence,) = mismatches(read_run(write([beat(1)], {"gpu": "x"})), subject())
    assert "does not say which configuration" in sentence


def test_a_run_may_give_the_hash_alone(write):
    own_hash = subject()["identity"]["configuration_hash"]
    assert list(mismatches(read_run(write([beat(1)], {"configuration_hash": own_hash})), subject())) == []
    assert list(mismatches(read_run(write([beat(1)], {"configuration_hash": "0" * 16})), subject())) != []


def test_another_commit_or_other_flags_are_reported(write):
    environment = {"config": {"model": MODEL}, "commit": "a" * 40, "flags": {"NSA_USE_FA2": "1"}}
    sentences = list(mismatches(read_run(write([beat(1)], environment)), subject(commit="b" * 12)))
    assert [any(word in sentence for sentence in sentences) for word in ("commit aaaa", "NSA_USE_FA2=1")] == [
        True,
        True,
    ]
    same = subject(commit="aaaaaaaaaaaa + changes", flags={"NSA_USE_FA2": "1"})
    assert list(mismatches(read_run(write([beat(1)], environment)), same)) == []


@pytest.mark.parametrize("losses", [[1e308] * 40, [math.inf, -math.inf] * 20])
def test_losses_too_large_to_add_up_spoil_the_ratio_alone(write, losses):
    found = numbers(write([beat(step, loss=loss) for step, loss in enumerate(losses)]))
    assert not math.isfinite(found["loss_ratio"])
    assert found["steps"] == 39


def test_a_time_that_is_no_number_hides_no_silence(write):
    beats = [beat(1, ts=1.0), beat(2, ts=5.0), beat(3, ts=math.nan), beat(4, ts=math.inf), beat(5, ts=7000.0)]
    folder = write(beats)
    assert numbers(folder)["longest_silence_seconds"] == 6995
    assert facts_of(read_run(folder))["silences"] == [[1.0, 4.0], [5.0, 6995.0]]


def test_every_time_between_heartbeats_is_reported(write):
    folder = write([beat(step, ts=1e9 + step) for step in range(300)])
    assert len(facts_of(read_run(folder))["silences"]) == 299


def test_of_a_long_run_the_longest_silence_of_each_stretch_is_reported(write):
    folder = write([beat(step, ts=1e9 + step + 500 * (step > 7001)) for step in range(20_000)])
    silences = facts_of(read_run(folder))["silences"]
    assert [1e9 + 7001, 501.0] in silences
    starts = [since for since, _ in silences]
    assert 1500 < len(starts) <= 2001
    assert max(after - before for before, after in pairwise(starts)) < 600


def test_a_thinned_series_keeps_every_loss_that_is_not_finite(write):
    folder = write([beat(step, loss=math.nan if step == 7001 else 1.0) for step in range(20_003)])
    assert sum(math.isnan(loss) for loss in facts_of(read_run(folder))["series"]["loss"]) == 1


@pytest.mark.parametrize(("commit", "is_same"), [("a" * 7, True), ("a" * 40, True), ("b" * 7, False), ("a", False)])
def test_a_commit_may_be_abbreviated_as_git_does(write, commit, is_same):
    own_hash = subject()["identity"]["configuration_hash"]
    run = read_run(write([beat(1)], {"configuration_hash": own_hash, "commit": commit}))
    assert (list(mismatches(run, subject(commit="a" * 12))) == []) is is_same


@pytest.mark.parametrize("parts", [{"commit": " "}, {"commit": 12}, {"flags": "NSA_USE_FA2=1"}, {"flags": ["a"]}])
def test_what_cannot_be_compared_is_no_evidence(write, parts):
    own_hash = subject()["identity"]["configuration_hash"]
    run = read_run(write([beat(1)], {"configuration_hash": own_hash, **parts}))
    (sentence,) = mismatches(run, subject(commit="a" * 12))
    assert next(iter(parts)) in sentence


def test_a_run_that_gives_a_configuration_and_the_hash_of_another_is_no_evidence(write):
    own_hash = subject()["identity"]["configuration_hash"]
    run = read_run(write([beat(1)], {"config": {"model": {**MODEL, "dim": 128}}, "configuration_hash": own_hash}))
    assert "dim 128 and not 64" in "".join(mismatches(run, subject()))


def test_no_run_is_evidence_about_a_subject_without_a_configuration(write):
    run = read_run(write([beat(1)], {"config": {"model": {"dim": 3}}, "configuration_hash": ""}))
    assert list(mismatches(run, {"name": "mine", "identity": {}})) != []


def test_an_absurd_configuration_makes_no_absurd_sentence(write):
    run = read_run(write([beat(1)], {"config": {"model": {"dim": "x" * 10_000, "heads": [[[[[[[[[1]]]]]]]]]}}}))
    assert all(len(sentence) < 500 for sentence in mismatches(run, subject()))


def test_files_that_are_there_but_tell_nothing_are_named(write):
    with pytest.raises(RunError, match=r"heartbeat_rank0.jsonl: 1 line is no heartbeat.*env.json: is not a JSON"):
        read_run(write(["rubbish"], ["no object"]))


def test_a_name_too_long_for_the_disk_is_no_folder(tmp_path):
    with pytest.raises(RunError, match="File name too long"):
        read_run(tmp_path / ("x" * 300))


def test_an_empty_file_is_no_checkpoint(write):
    folder = write([beat(1)])
    (folder / "model.pt").touch()
    (folder / "step_1.pt").symlink_to("nowhere")
    assert numbers(folder)["checkpoints"] == 0
    (folder / "model.pt").write_bytes(b"PK")
    assert numbers(folder)["checkpoints"] == 1


def test_heartbeats_of_absurd_size_are_read_in_part(write, monkeypatch):
    monkeypatch.setattr("nsa_doctor.artifacts.training_run.growing_lines.LARGEST_FILE", 100_000)
    folder = write([beat(1)])
    os.truncate(folder / "heartbeat_rank0.jsonl", 1 << 30)
    assert "heartbeat_rank0.jsonl: only the first 0 MiB were read" in read_run(folder).notes
