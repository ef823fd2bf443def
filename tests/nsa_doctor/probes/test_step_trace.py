"""A training step that is not finite is traced to module, operation and line, and nothing but words comes of it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import silu

from nsa.config import parse_config
from nsa.nn.transformer import SwiGLU
from nsa.train import TrainError, train
from nsa.train.objective import Objective
from nsa.train.replay import replay
from nsa.train.tracer import installed_tracer
from nsa_doctor.probes.numerics.steptrace import trace

HERE = Path(__file__)
MODEL = {"dim": 16, "n_layers": 2, "n_heads": 2, "n_kv_groups": 1, "d_k": 8, "d_v": 8, "vocab_size": 256}
NSA = {"l": 4, "d": 2, "l_sel": 4, "n_sel": 3, "w": 6}
TRAIN = {"steps": 4, "seq_len": 16, "batch_size": 4, "eval_batches": 0, "sample_tokens": 0, "on_nonfinite": "trace"}


def config(folder, *, runtime=None, **changes):
    train_section = TRAIN | {"out_dir": str(folder)} | changes
    return parse_config(
        {"model": MODEL, "nsa": NSA, "train": train_section, "runtime": {"device": "cpu"} | (runtime or {})}
    )


def line_of(mark):
    lines = HERE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def makes_nan(hidden):
    return hidden + torch.log(-hidden.detach().abs().sum())  # makes NaN


def makes_inf(hidden):
    return hidden / hidden.detach().mul(0)  # makes inf


def makes_nan_in_backward(hidden):
    return hidden + hidden.mul(0).sqrt()  # makes NaN in backward


@pytest.fixture
def plant(monkeypatch):
    """`plant(fault, when)`: the hidden values of every SwiGLU go through `fault` while `when()`."""
    monkeypatch.setattr("nsa.train.results.draw", lambda *_: None)

    def put(fault, when=lambda: True):
        def forward(self, x):
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            hidden = silu(gate) * up
            return self.down(fault(hidden) if when() else hidden)

        monkeypatch.setattr(SwiGLU, "forward", forward)

    return put


def stopped(folder, **changes):
    with pytest.raises(TrainError) as caught:
        train(config(folder, **changes))
    assert caught.value.code == 3
    return str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"runtime": {"precision": "bf16"}},
        {"runtime": {"activation_checkpointing": True}},
        {"accumulate_grad_batches": 2},
    ],
    ids=["plain", "bf16", "checkpointing", "accumulation"],
)
@pytest.mark.parametrize(
    ("fault", "value", "operation", "phase"),
    [
        (makes_nan, "NaN", "log", "forward"),
        (makes_inf, "inf", "div", "forward"),
        (makes_nan_in_backward, "inf", "div in SqrtBackward0", "backward"),
    ],
    ids=["nan", "inf", "backward"],
)
def test_module_operation_line_and_pass_are_named(fault, value, operation, phase, changes, plant, tmp_path):
    plant(fault)
    sentence = stopped(tmp_path / "run", **changes)
    mark = {makes_nan: "makes NaN", makes_inf: "makes inf"}.get(fault, "makes NaN in backward")
    module = f"blocks.{1 if phase == 'backward' else 0}.mlp (SwiGLU)"  # where the pass comes first
    born = f"; {value} is born in {module}, {operation} at {HERE}:{line_of(mark)}, in the {phase} pass: "
    assert born in sentence


def test_heartbeat_and_the_kept_step_say_it_too_and_a_replay_again(plant, tmp_path):
    plant(makes_nan)
    stopped(tmp_path / "run")
    (place,) = (tmp_path / "run").glob("nonfinite_step_*")
    sentence = json.loads((place / "step_rank0.json").read_text())["traced"]
    assert re.match(r"NaN is born in blocks\.0\.mlp \(SwiGLU\), log at .*: out of finite inputs; it reaches", sentence)
    beats = [json.loads(line)["msg"] for line in (tmp_path / "run" / "heartbeat_rank0.jsonl").read_text().splitlines()]
    assert any(f"; {sentence};" in beat for beat in beats)
    (line,) = replay(place)
    assert line.endswith(f"; {sentence}")


def test_the_second_micro_batch_is_reported_when_it_is_guilty(monkeypatch, tmp_path):
    forward, seen = Objective.forward, [0]
    guilty = []

    def faulty(self, tokens, documents):
        seen[0] += torch.is_grad_enabled()
        if seen[0] == 4:
            guilty.append(tokens.clone())
        loss = forward(self, tokens, documents)
        return (loss * 0).log() if guilty and torch.equal(tokens, guilty[0]) else loss

    monkeypatch.setattr(Objective, "forward", faulty)
    sentence = stopped(tmp_path / "run", accumulate_grad_batches=2)
    assert "micro-batch 1 of 2 is -inf at step 2; inf is born in Objective, log at" in sentence


def test_a_poisoned_weight_is_named_and_no_operation_blamed(monkeypatch, tmp_path):
    step = torch.optim.AdamW.step

    def poisons(self, *given, **named):
        step(self, *given, **named)
        with torch.no_grad():
            self.param_groups[0]["params"][2][0, 0] = torch.nan

    monkeypatch.setattr(torch.optim.AdamW, "step", poisons)
    sentence = stopped(tmp_path / "run")
    assert "the loss is nan at step 2; parameter blocks.0.attention.qkv.k_cmp of blocks.0.attention.qkv" in sentence
    assert "(Projection) held NaN before the step" in sentence
    (place,) = (tmp_path / "run").glob("nonfinite_step_*")
    assert any(bool(value.isnan().any()) for value in load_file(place / "model.safetensors").values())


def test_the_weights_are_those_of_a_run_that_is_not_traced(plant, tmp_path):
    for policy in ("stop", "trace"):
        calls = iter(range(100))
        plant(makes_nan, lambda calls=calls: next(calls) >= 4)
        stopped(tmp_path / policy, on_nonfinite=policy)
    kept = [load_file(next((tmp_path / each).glob("nonfinite*")) / "model.safetensors") for each in ("stop", "trace")]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


def test_what_is_healthy_when_it_is_computed_again_is_reported_so(plant, tmp_path):
    calls = iter(range(100))
    plant(makes_nan, lambda: next(calls) == 2)
    assert "the tracer saw nothing that is not finite when the step was computed again;" in stopped(tmp_path / "run")


class Moving(nn.Module):
    """A buffer moves with each pass, and random numbers are drawn in it."""

    def __init__(self, poisoned):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        if poisoned:
            with torch.no_grad():
                self.linear.weight[1, 1] = torch.nan

    def forward(self, x):
        return nn.functional.dropout(self.norm(self.linear(x)), 0.5).sum()


@pytest.mark.parametrize("poisoned", [False, True])
def test_weights_buffers_gradients_and_random_states_stay_bit_for_bit(poisoned):
    model, x = Moving(poisoned), torch.ones(3, 4)
    model.linear.bias.grad = torch.full((4,), 2.0)
    gradient = model.linear.bias.grad
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    sentence = trace(model, lambda: model(x))
    assert bool(sentence) == poisoned
    assert all(
        torch.equal(value.nan_to_num(9.0), before[name].nan_to_num(9.0)) for name, value in model.state_dict().items()
    )
    assert bool(model.linear.weight.isnan().any()) == poisoned
    assert torch.equal(torch.get_rng_state(), state)
    assert model.linear.bias.grad is gradient
    assert gradient.tolist() == [2.0] * 4
    assert model.linear.weight.grad is None


def test_a_loss_overwritten_where_it_is_read_is_followed_further_back():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias[0] = torch.inf

    def compute():
        out = model(torch.ones(1, 2)).detach()
        torch.maximum(out, torch.zeros(1, 2), out=out)
        return out.sum()

    assert trace(model, compute) == "parameter bias of Linear held inf before the step; it reaches the loss"


def test_it_is_the_tracer_that_training_finds():
    assert installed_tracer() is trace


SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from nsa.nn.transformer import SwiGLU
from nsa.train import TrainError, train
from tests.nsa_doctor.probes.test_step_trace import config

forward = SwiGLU.forward

def faulty(self, x):
    out = forward(self, x)
    is_second = torch.distributed.get_rank() == 1
    return out + (out.detach() * 0).sum().log() if is_second else out

SwiGLU.forward = faulty
try:
    train(config(sys.argv[2]))
except TrainError as error:
    print(torch.distributed.get_rank(), error, flush=True)
"""


@pytest.mark.full
def test_with_ddp_the_rank_that_saw_it_is_heard_by_the_first(tmp_path):
    script = tmp_path / "guilty.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    root = str(HERE.parents[3])
    command = [*launch, str(script), root, str(tmp_path / "run")]
    subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    (place,) = (tmp_path / "run").glob("nonfinite_step_*")
    first, second = (json.loads((place / f"step_rank{rank}.json").read_text())["traced"] for rank in (0, 1))
    assert second.startswith("inf is born in blocks.0.mlp (SwiGLU), log at")
    assert first == f"on rank 1 {second}"
