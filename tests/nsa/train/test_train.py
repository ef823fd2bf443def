"""A run from its configuration to its last artefact."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from nsa import Transformer
from nsa.train import TrainError
from nsa.train.table import read_table


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


# What it leaves behind.


def test_the_loss_falls(run, losses):
    found = [float(loss) for _, loss in losses(run(steps=60, lr=2e-2, eval_batches=0))]
    assert found[0] > 0.9 * math.log(32)
    assert sum(found[-5:]) / 5 < 0.6 * found[0]


def test_the_artefacts_have_the_names_of_the_reports(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {"env.json", "heartbeat_rank0.jsonl", "training.csv", "metrics.json", "checkpoints", "samples"}
    assert names >= {"model.pt", "model.safetensors", "training.png", "evaluations.csv", "gates.csv"}


def test_every_step_has_a_heartbeat_with_every_field(finished, beats):
    found = beats(finished)
    fields = "ts iso pid rank step msg loss toks_per_s dt_fetch_s grad_norm lr batch "
    fields += "gpu_mem_alloc gpu_mem_reserved rss_bytes"
    assert all(list(beat) == fields.split() for beat in found)
    steps = [beat for beat in found if beat["msg"] == "step"]
    assert [beat["step"] for beat in steps] == [1, 2, 3, 4, 5, 6]
    filled = ("loss", "toks_per_s", "dt_fetch_s", "grad_norm", "lr", "batch")
    assert all(beat[name] is not None for beat in steps for name in filled)
    assert (found[0]["msg"], found[-1]["msg"]) == ("started", "finished")


def test_the_table_holds_what_the_heartbeat_tells(finished, beats, losses):
    assert losses(finished) == [
        (str(beat["step"]), repr(beat["loss"])) for beat in beats(finished) if beat["msg"] == "step"
    ]


def test_the_metrics_sum_the_run_up(finished, losses):
    metrics = json.loads((finished / "metrics.json").read_text())
    assert metrics["steps"] == 6
    assert metrics["tokens"] == 6 * 4 * 16
    assert metrics["entropy"] == 0.4
    assert repr(metrics["final_loss"]) == losses(finished)[-1][1]
    assert metrics["first_held_out_loss"] > metrics["final_held_out_loss"]


def test_the_final_weights_are_a_plain_state_dict_and_the_same_in_both_files(finished, config):
    plain = torch.load(finished / "model.pt", weights_only=True)
    assert same(plain, weights(finished))
    Transformer(config(model={"n_layers": 2}).model).load_state_dict(plain)
    torch.manual_seed(1337)
    untrained = Transformer(config(model={"n_layers": 2}).model).state_dict()
    assert [name for name, value in untrained.items() if torch.equal(value, plain[name])] == []


def test_the_gates_of_every_layer_are_logged(finished):
    rows = read_table(finished / "gates.csv")
    assert [(row["step"], row["layer"]) for row in rows] == [(step, layer) for step in "0246" for layer in "01"]
    assert all(sum(float(row[name]) for name in ("cmp", "sel", "win")) == pytest.approx(1) for row in rows)
    first, last = rows[0], rows[-2]
    assert any(abs(float(first[name]) - float(last[name])) > 1e-5 for name in ("cmp", "sel", "win"))


def test_a_sample_continues_a_held_out_row(finished):
    sample = json.loads((finished / "samples" / "step_00000006.json").read_text())
    assert (len(sample["prompt"]), len(sample["continuation"])) == (8, 4)
    assert sample["tokens_per_second"] > 0


def test_the_doctor_takes_the_run_for_evidence_of_its_configuration(finished, config):
    from nsa_doctor.artifacts.training_run.matching import mismatches
    from nsa_doctor.artifacts.training_run.numbers import numbers_of
    from nsa_doctor.artifacts.training_run.reading import read_run
    from nsa_doctor.core.identity import commit_of, digest

    record = read_run(finished)
    model = config(model={"n_layers": 2}).model.model_dump(mode="json")
    identity = {"configuration": model, "configuration_hash": digest(model), "flags": {}, "commit": commit_of(__file__)}
    assert list(mismatches(record, {"name": "it", "identity": identity})) == []
    other = {**identity, "configuration": {**model, "w": 7}, "configuration_hash": digest({**model, "w": 7})}
    assert list(mismatches(record, {"name": "it", "identity": other})) != []
    numbers = numbers_of(record)
    assert record.notes == ()
    assert (numbers["steps"], numbers["nonfinite_losses"], numbers["resumes"]) == (6, 0, 0)
    assert record.checkpoints == ("model.pt", "model.safetensors", "checkpoints/step_00000006")


# What decides the numbers, and what does not.


def test_the_same_seed_gives_the_same_run_and_another_does_not(run, losses, tmp_path):
    first, again = run(), run(out_dir=str(tmp_path / "again"))
    other = run(out_dir=str(tmp_path / "other"), seed=7)
    assert losses(first) == losses(again)
    assert same(weights(first), weights(again))
    assert losses(first)[0] != losses(other)[0]


def test_monitors_change_nothing(run, tmp_path):
    watched = run(eval_every=2, log_every=1)
    alone = run(eval_batches=0, out_dir=str(tmp_path / "alone"), runtime={"monitors": False})
    assert same(weights(watched), weights(alone))
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in (watched, alone)]
    assert metrics[0]["final_loss"] == metrics[1]["final_loss"]
    assert not (alone / "heartbeat_rank0.jsonl").exists()


def test_recomputing_blocks_changes_nothing(run, losses, tmp_path):
    kept = run()
    recomputed = run(out_dir=str(tmp_path / "re"), runtime={"activation_checkpointing": True})
    assert losses(kept) == losses(recomputed)


def test_many_small_micro_batches_are_one_large(run, losses, tmp_path):
    large = run(batch_size=4)
    small = run(batch_size=1, accumulate_grad_batches=4, out_dir=str(tmp_path / "small"))
    for (_, whole), (_, parts) in zip(losses(large), losses(small), strict=True):
        assert float(parts) == pytest.approx(float(whole), rel=1e-4)


def test_half_precision_trains(run, losses, tmp_path):
    whole = run(steps=20)
    half = run(steps=20, out_dir=str(tmp_path / "half"), runtime={"precision": "bf16"})
    assert weights(half)["embedding.weight"].dtype == torch.float32
    first, second = float(losses(whole)[-1][1]), float(losses(half)[-1][1])
    assert first != second
    assert second == pytest.approx(first, rel=0.05)


def test_clipping_takes_effect(run, losses, tmp_path):
    free = run()
    clipped = run(grad_clip=1e-4, beta1=0.0, beta2=0.0, out_dir=str(tmp_path / "clipped"))
    assert losses(free)[0] == losses(clipped)[0]
    assert losses(free)[-1] != losses(clipped)[-1]


@pytest.mark.parametrize("branch", ["cmp", "sel", "win"])
def test_one_branch_alone_trains(branch, run):
    folder = run(model={"branch": branch}, eval_batches=1)
    row = read_table(folder / "gates.csv")[-1]
    assert float(row[branch]) == 1.0
    assert float(row["spread"]) == 0.0


# What is refused.


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"runtime": {"precision": "fp16"}}, "runtime.precision must be fp32 or bf16 to train"),
        ({"runtime": {"device": "cuda"}}, "runtime.device must be cpu or auto on a machine without a CUDA device"),
        (
            {"runtime": {"device": "auto", "precision": "bf16", "use_flash": True}},
            "runtime.use_flash must be false here",
        ),
        ({"model": {"vocab_size": 31}}, "model.vocab_size must be at least the 32 of a chain, got 31"),
        ({"on_nonfinite": "trace"}, "train.on_nonfinite trace needs a tracer"),
    ],
    ids=["fp16", "gpu", "flash", "vocabulary", "tracer"],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_what_cannot_be_is_refused_before_the_first_step(changes, sentence, run, config, monkeypatch):
    monkeypatch.setattr("nsa.train.run.installed_tracer", lambda: None)
    with pytest.raises(TrainError) as caught:
        run(**changes)
    assert str(caught.value).startswith(sentence)
    assert caught.value.code == 2


def test_a_flag_that_is_neither_0_nor_1_is_refused_before_the_first_step(run, monkeypatch):
    monkeypatch.setenv("NSA_USE_FA2", "2")
    with pytest.raises(TrainError) as caught:
        run()
    assert (str(caught.value), caught.value.code) == ("NSA_USE_FA2 must be 0 or 1, got '2'", 2)


def test_data_that_ends_early_ends_the_run_with_what_was_saved(run, beats, config):
    with pytest.raises(TrainError) as caught:
        run(save_every=2, faults={"ends_after": 5})
    assert (str(caught.value), caught.value.code) == ("a chain has no more batches", 4)
    assert run(save_every=2, resume="auto").joinpath("model.pt").exists()


def test_a_loader_that_fails_is_reported_in_its_own_words(run, beats, tmp_path):
    with pytest.raises(TrainError) as caught:
        run(faults={"breaks_at": 3})
    sentence = "shard 3 of corpus: cannot be read: No such file or directory"
    assert (str(caught.value), caught.value.code) == (sentence, 4)
    assert beats(tmp_path / "run")[-1]["msg"] == f"ended: {sentence}"


def test_a_batch_with_nothing_to_predict_is_reported(run, monkeypatch):
    monkeypatch.setattr("nsa.train.loop.num_targets", lambda _documents: 0)
    with pytest.raises(TrainError, match="the batch of step 1 has nothing to predict"):
        run(eval_batches=0)


def test_a_step_that_begins_with_the_gradients_of_another_is_refused(run, monkeypatch):
    monkeypatch.setattr("torch.optim.AdamW.zero_grad", lambda *_, **__: None)
    with pytest.raises(TrainError, match=r"step 2 begins with the gradient of an earlier one in \S+ and \d+ more: the"):
        run()
