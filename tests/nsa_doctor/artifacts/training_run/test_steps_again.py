"""Steps of real runs computed again: the same numbers whatever the run is like, and others where a seam is faulty."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import nsa.train.optimizer
import nsa.train.schedule
from nsa.config import TrainConfig
from nsa.train.failures import OutOfDataError
from nsa.train.loop import Loop
from nsa_doctor.artifacts.judging import judge
from nsa_doctor.artifacts.training_run.replay_result import Replay
from nsa_doctor.artifacts.training_run.replay_steps import steps_again
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.testing.training_runs import document_of, live, seen, trained

SHORT: dict[str, Any] = {"steps": 4, "save_every": 1, "eval_every": 0, "eval_batches": 2, "is_computed_again": True}


def judged(subject: RunSubject) -> Result:
    return judge(registry.load("TRN601"), subject)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulate_grad_batches": 4, "batch_size": 2, "weight_decay": 0.1, "grad_clip": 0.1},
        {"steps": 6, "save_every": 3, "eval_every": 2, "eval_batches": 3},
        {"runtime": {"precision": "bf16"}, "grad_clip": 0.0},
        slow({"runtime": {"activation_checkpointing": True}, "model": {"n_layers": 2, "tie_embeddings": False}}),
        slow({"lr_schedule": "constant", "warmup_steps": 0, "beta1": 0.8, "beta2": 0.9}),
        slow({"model": {"branch": "win"}}),
        slow({"eval_batches": 0}),
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_a_healthy_step_is_the_same_when_it_is_computed_again(changes: Mapping[str, Any]) -> None:
    subject = trained(**SHORT | changes)
    replay = subject.record.replay
    assert replay is not None
    assert replay.reason == ""
    assert replay.last - replay.first == len(replay.steps) >= 1
    assert any(move.replayed > 0 for move in replay.moves)
    assert bool(replay.evaluations) == (changes.get("eval_batches") != 0)
    assert (judged(subject).verdict, judged(subject).findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.full) for seed in range(4)])
def test_rounding_of_half_precision_is_no_finding_however_long_the_stretch(seed: int) -> None:
    changes = {"steps": 24, "save_every": 12, "seed": seed, "model": {"n_layers": 2}, "runtime": {"precision": "bf16"}}
    subject = trained(**SHORT | changes)
    assert subject.record.replay is not None
    assert len(subject.record.replay.steps) == 12
    assert (judged(subject).verdict, judged(subject).findings) == (Verdict.PASS, ())


def two_ahead(tokens: Tensor, documents: Tensor) -> Tensor:
    return torch.cat((tokens[:, 2:], tokens[:, -1:]), dim=1)


def forgetful_backward(loop: Loop, batches: Any, count: int) -> list[Tensor]:
    """Gradients of the last micro-batch alone are left."""
    sums = []
    for batch in batches:
        loop.machinery.optimizer.zero_grad()
        loss = loop.machinery.called(*loop._on_device(batch))
        (loss / count).backward()
        sums.append(loss.detach())
    return sums


def optimizer_with(**group: Any) -> Callable[[nn.Module, TrainConfig], torch.optim.Optimizer]:
    """One whose groups all have other options."""

    def make(model: nn.Module, train: TrainConfig) -> torch.optim.Optimizer:
        optimizer = nsa.train.optimizer.make_optimizer(model, train)
        for each in optimizer.param_groups:
            each |= group
        return optimizer

    return make


def deaf_gate(model: nn.Module, train: TrainConfig) -> torch.optim.Optimizer:
    """The gate decays and learns nothing."""
    for name, parameter in model.named_parameters():
        if ".gate." in name:
            parameter.register_hook(torch.zeros_like)
    return nsa.train.optimizer.make_optimizer(model, train)


def late_rate(step: int, train: TrainConfig) -> float:
    return nsa.train.schedule.learning_rate(step - 1, train)


MAKER, ACCUMULATES = "nsa.train.setup.make_optimizer", {"accumulate_grad_batches": 4, "batch_size": 2}


@pytest.mark.parametrize(
    ("seams", "changes", "kind", "message"),
    [
        ({"nsa.train.objective.next_tokens": two_ahead}, {}, "loss", "step 4 lost "),
        ({"nsa.train.loop.Loop._backward": forgetful_backward}, ACCUMULATES, "gradient", "its loss is the same"),
        ({MAKER: deaf_gate}, {}, "weights", "attention.gate.fc"),
        ({MAKER: optimizer_with(weight_decay=0.0)}, {"weight_decay": 0.05}, "weights", "12 more of 18"),
        slow({MAKER: optimizer_with(weight_decay=0.1)}, {"weight_decay": 0.1}, "weights", "norm.weight ended"),
        slow({MAKER: optimizer_with(betas=(0.9, 0.999))}, {}, "weights", "17 more of 18"),
        slow({MAKER: optimizer_with(eps=1e-4)}, {}, "weights", "leads"),
        slow({"nsa.train.loop.clip_gradients": lambda *_: None}, {"grad_clip": 0.1}, "weights", "17 more of 18"),
        slow({"nsa.train.loop.learning_rate": late_rate}, {}, "weights", "17 more of 18"),
        ({"nsa.train.evaluate.num_targets": lambda documents: documents.numel()}, {}, "evaluation", "held-out loss"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_step_made_otherwise_is_reported_where_it_first_departs(
    seams: Mapping[str, Any], changes: Mapping[str, Any], kind: str, message: str
) -> None:
    (finding,) = judged(trained(seams=seams, **SHORT | changes)).findings
    assert finding.evidence["property"] == kind
    assert message in finding.message


def test_what_departs_after_a_sound_step_is_a_matter_of_the_weights() -> None:
    seams = {MAKER: optimizer_with(betas=(0.5, 0.5))}
    (finding,) = judged(trained(seams=seams, **SHORT | {"steps": 6, "save_every": 3})).findings
    assert finding.evidence["property"] == "weights"
    assert "steps 4 to 6 lead" in finding.message
    assert finding.where.module


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a healthy run of four steps, all of them saved but the first."""
    folder = tmp_path_factory.mktemp("again") / "run"
    live(document_of(folder, **{key: SHORT[key] for key in ("steps", "save_every", "eval_every")}), {})
    return folder


def with_replay(folder: Path, replay: Replay) -> RunSubject:
    subject = seen(folder)
    return replace(subject, record=replace(subject.record, replay=replay))


def test_where_no_checkpoints_are_near_one_step_is_compared_and_no_weights(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    for name in ("step_00000003", "step_00000004"):
        shutil.rmtree(folder / "checkpoints" / name)
    replay = steps_again(folder)
    assert (replay.first, replay.last, [each.step for each in replay.steps], replay.moves) == (2, 0, [3], ())
    assert judged(with_replay(folder, replay)).verdict is Verdict.PASS


def test_a_step_of_other_rows_is_not_compared(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    path = folder / "checkpoints" / "step_00000003" / "state.json"
    state = json.loads(path.read_text())
    state["processes"][0]["data"]["rows"] = {"next": 0}
    state["config"]["train"]["seed"] += 1
    path.write_text(json.dumps(state))
    result = judged(with_replay(folder, steps_again(folder)))
    assert result.verdict is Verdict.SKIP


def test_a_run_that_tells_of_none_of_the_steps_is_not_passed(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    for name in ("step_00000002", "step_00000003"):
        shutil.rmtree(folder / "checkpoints" / name)
    replay = steps_again(folder)
    assert [each.step for each in replay.steps] == [5]
    result = judged(with_replay(folder, replay))
    assert (result.verdict, result.reason) == (Verdict.SKIP, "the run logs no step after its checkpoint of step 4")


def test_folders_that_are_called_like_checkpoints_are_none(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    for name in ("step_4", "step_2", "step_00000004.old"):
        shutil.copytree(folder / "checkpoints" / "step_00000002", folder / "checkpoints" / name)
    replay = steps_again(folder)
    assert (replay.last - replay.first, len(replay.steps)) == (1, 1)
    assert judged(with_replay(folder, replay)).verdict is Verdict.PASS


def test_an_evaluation_is_of_its_own_lifes_rows(tmp_path: Path) -> None:
    def ends(step: int, train: TrainConfig) -> float:
        if step == 5:
            raise OutOfDataError("the disk was taken away")
        return nsa.train.schedule.learning_rate(step, train)

    document = document_of(tmp_path / "run", steps=30, save_every=2, keep_last=9, eval_every=0, eval_batches=1)
    live(document, {"nsa.train.loop.learning_rate": ends})
    document["train"] |= {"save_every": 20, "eval_batches": 6}
    live(document, {}, resume="auto")
    replay = steps_again(tmp_path / "run", [30])
    assert (replay.first, replay.last, [each.step for each in replay.evaluations]) == (2, 4, [30])
    assert judged(with_replay(tmp_path / "run", replay)).findings == ()


def cut_short(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def without_a_parameter(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    del tensors["norm.weight"]
    save_file(tensors, path)


def with_another_shape(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    save_file(load_file(path) | {"norm.weight": torch.ones(7)}, path)


def with_a_nan(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    save_file(load_file(path) | {"norm.weight": torch.full((32,), torch.nan)}, path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut_short, "step_00000003 cannot be read: SafetensorError"),
        (without_a_parameter, "norm.weight"),
        (with_another_shape, "norm.weight"),
        (with_a_nan, "step 4 is not finite when it is computed again"),
        (lambda each: (each / "state.json").write_text("[]"), "step_00000003 cannot be read: TypeError"),
        (lambda each: (each / "state.json").write_text("{"), "step_00000003 cannot be read: JSONDecodeError"),
        (lambda each: (each / "optimizer.safetensors").unlink(), "optimizer.safetensors"),
        (lambda each: shutil.rmtree(each.parent), "the run holds no checkpoint of nsa.train"),
    ],
)
def test_what_cannot_be_computed_again_is_a_reason_and_no_finding(
    spoil: Callable[[Path], None], message: str, run: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    spoil(folder / "checkpoints" / "step_00000003")
    replay = steps_again(folder)
    assert message in replay.reason
    result = judged(with_replay(folder, replay))
    assert (result.verdict, result.reason) == (Verdict.SKIP, f"no step can be computed again: {replay.reason}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_a_reason(run: Path) -> None:
    assert steps_again(run, device="cuda").reason == "there is no CUDA device here"


def test_what_was_computed_travels_as_json(run: Path) -> None:
    from dataclasses import asdict

    replay = steps_again(run, [4])
    assert replay.evaluations
    assert Replay.from_json(json.loads(json.dumps(asdict(replay)))) == replay
