"""A step that is not finite is reported before the optimizer touches the weights, and can be seen again."""

import json
import math
from importlib.metadata import EntryPoint

import pytest
import torch
from safetensors.torch import load_file

from nsa.train import TrainError
from nsa.train.objective import Objective
from nsa.train.replay import replay
from nsa.train.tracer import installed_tracer


@pytest.fixture
def poison(monkeypatch):
    """`poison({3}, value)`: the loss of these training micro-batches, counted from 1, is multiplied by `value`."""

    def plant(batches, value=torch.nan, *, only_backward=False):
        forward, seen = Objective.forward, [0]

        def faulty(self, tokens, documents):
            loss = forward(self, tokens, documents)
            seen[0] += torch.is_grad_enabled()
            if torch.is_grad_enabled() and seen[0] in batches:
                if only_backward:
                    self.model.norm.weight.register_hook(lambda gradient: gradient * value)
                    return loss
                return loss * value
            return loss

        monkeypatch.setattr(Objective, "forward", faulty)

    return plant


def stop(run, **changes):
    with pytest.raises(TrainError) as caught:
        run(**changes)
    assert caught.value.code == 3
    return str(caught.value)


def test_it_stops_before_the_optimizer_touches_the_weights(run, poison, tmp_path):
    poison({4})
    sentence = stop(run, save_every=1)
    assert "the loss is nan at step 4" in sentence
    kept = load_file(tmp_path / "run" / "nonfinite_step_00000004" / "model.safetensors")
    saved = load_file(tmp_path / "run" / "checkpoints" / "step_00000003" / "model.safetensors")
    assert all(torch.equal(kept[name], saved[name]) for name in saved)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_every_kind_of_it_is_noticed(value, run, poison):
    poison({2}, value)
    assert f"the loss is {value} at step 2" in stop(run)


def test_the_batch_is_kept_for_replay(run, poison, tmp_path):
    poison({6})
    assert "micro-batch 1 of 2" in stop(run, accumulate_grad_batches=2, batch_size=2)
    place = tmp_path / "run" / "nonfinite_step_00000003"
    batch = load_file(place / "batch_rank0.safetensors")
    assert batch["tokens"].shape == batch["documents"].shape == (2, 2, 17)
    facts = json.loads((place / "step_rank0.json").read_text())
    assert facts["step"] == 3
    assert facts["losses"][1] == "nan"
    assert facts["sources"] == [["row 8"], ["row 10"]]


def test_a_finite_loss_with_a_gradient_that_is_not_names_the_parameter(run, poison):
    poison({3}, only_backward=True)
    assert "the loss of step 3 is finite and its gradient is not (norm nan): norm.weight" in stop(run)


def test_the_heartbeat_tells_loss_and_reason(run, poison, beats, tmp_path):
    poison({2})
    stop(run)
    *_, refused, ended = beats(tmp_path / "run")
    assert math.isnan(refused["loss"])
    assert refused["msg"].startswith("not finite: the loss is nan at step 2")
    assert ended["msg"].startswith("ended: stopped: the loss is nan")


def test_a_stopped_run_is_resumed_from_its_last_checkpoint(run, poison, monkeypatch, losses, tmp_path):
    poison({4})
    stop(run, save_every=1)
    monkeypatch.undo()
    monkeypatch.setattr("nsa.train.results.draw", lambda *_: None)
    assert losses(run(save_every=1, resume="auto")) == losses(run(out_dir=str(tmp_path / "whole")))


def test_a_skipped_step_leaves_the_weights_and_the_run_goes_on(run, poison, losses, tmp_path):
    poison({3})
    folder = run(on_nonfinite="skip", save_every=1, keep_last=6)
    steps = {step: load_file(folder / "checkpoints" / f"step_{step:08d}" / "model.safetensors") for step in (2, 3, 4)}
    assert all(torch.equal(steps[2][name], steps[3][name]) for name in steps[2])
    assert any(not torch.equal(steps[3][name], steps[4][name]) for name in steps[2])
    assert json.loads((folder / "metrics.json").read_text())["skipped_steps"] == [3]
    assert [loss for step, loss in losses(folder) if step == "3"] == ["nan"]
    assert math.isfinite(float(losses(folder)[-1][1]))


def test_a_run_that_does_nothing_but_skip_stops(run, poison):
    poison(set(range(1, 99)))
    assert "stopped after 10 skipped steps in a row" in stop(run, on_nonfinite="skip", steps=40)


def test_a_tracer_is_asked_about_the_batch_at_fault_and_its_word_passed_on(run, poison):
    poison({3})
    asked = []

    def tracer(model, compute):
        asked.append(bool(compute().isfinite()))
        return "blocks.0.attention: softmax makes the first nan"

    sentence = stop(run, on_nonfinite="trace", tracer=tracer)
    assert "; blocks.0.attention: softmax makes the first nan;" in sentence
    assert len(asked) == 1


def test_a_tracer_that_breaks_costs_its_own_word_alone(run, poison, tmp_path):
    poison({3})

    def tracer(model, compute):
        raise KeyError("blocks.9")

    sentence = stop(run, on_nonfinite="trace", tracer=tracer)
    assert "the loss is nan at step 3; the tracer broke: KeyError: 'blocks.9';" in sentence
    assert (tmp_path / "run" / "nonfinite_step_00000003" / "model.safetensors").exists()


def test_an_installed_tracer_is_found_and_a_broken_one_refused(monkeypatch):
    def points(value):
        return lambda group: [EntryPoint("it", value, group)]

    monkeypatch.setattr("nsa.train.tracer.entry_points", points("math:sqrt"))
    assert installed_tracer() is math.sqrt
    monkeypatch.setattr("nsa.train.tracer.entry_points", points("math:nothing"))
    with pytest.raises(TrainError, match=r"the tracer it \(math:nothing\) cannot be loaded"):
        installed_tracer()
    monkeypatch.setattr("nsa.train.tracer.entry_points", lambda group: [])
    assert installed_tracer() is None


def test_what_a_tracer_computes_again_is_the_same_loss(run, poison, losses):
    poison({3}, only_backward=True)
    seen = []

    def tracer(model, compute):
        loss = compute()
        loss.backward()
        seen.append(loss.item())
        return ""

    sentence = stop(run, on_nonfinite="trace", tracer=tracer)
    assert "the tracer saw nothing that is not finite" in sentence
    assert len(seen) == 1
    assert 1 < seen[0] < 5


def test_a_kept_step_is_computed_again(run, poison, monkeypatch, tmp_path):
    poison({3}, only_backward=True)
    stop(run)
    place = tmp_path / "run" / "nonfinite_step_00000003"
    poison({1}, only_backward=True)
    (line,) = replay(place, lambda model, compute: "norm makes the first nan")
    assert line.startswith("micro-batch 0: loss ")
    assert line.endswith("gradient norm nan, not finite in norm.weight; norm makes the first nan")
    monkeypatch.undo()
    (line,) = replay(place)
    assert "nan" not in line


@pytest.mark.parametrize("harm", ["gone", "empty", "json", "config", "batch", "weights"])
def test_a_folder_that_holds_no_step_is_refused(harm, run, poison, tmp_path):
    poison({2})
    stop(run)
    place = tmp_path / "run" / "nonfinite_step_00000002"
    if harm == "gone":
        place = tmp_path / "nowhere"
    elif harm == "empty":
        (place / "step_rank0.json").unlink()
    elif harm == "json":
        (place / "step_rank0.json").write_text("[")
    elif harm == "config":
        (place / "step_rank0.json").write_text('{"config": {"model": 3}}')
    elif harm == "batch":
        (place / "batch_rank0.safetensors").write_bytes(b"rubbish")
    else:
        (place / "model.safetensors").unlink()
    with pytest.raises(TrainError) as caught:
        list(replay(place))
    assert caught.value.code == 2
