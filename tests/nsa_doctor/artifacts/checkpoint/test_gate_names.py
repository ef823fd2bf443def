"""Which tensors of a checkpoint are gates, whatever wraps them and whatever their authors call them."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from nsa_doctor.artifacts.checkpoint import gate_names
from nsa_doctor.artifacts.checkpoint.patterns import bounded
from nsa_doctor.artifacts.checkpoint.reader import ReadRequest
from nsa_doctor.worker.checkpoint_main import answered
from tests.nsa_doctor.artifacts.checkpoint.test_gate_stats import model, reading, saved


@pytest.mark.parametrize("wrap", ["{}", "module.{}", "_orig_mod.{}", "module._orig_mod.{}", "_fsdp_wrapped_module.{}"])
@pytest.mark.parametrize("key", [None, "model", "state_dict", "module", "model_state_dict"])
def test_wrappers_do_not_change_what_a_layer_is_called(key: str | None, wrap: str, tmp_path: Path) -> None:
    tensors = {wrap.format(name): tensor for name, tensor in model("healthy").items()}
    found = reading(saved(tmp_path / "m.pt", tensors if key is None else {key: tensors, "step": 3}))
    assert [gate.layer for gate in found.gates] == ["layers.0.attn.gate"]


def test_layers_of_two_models_in_one_file_are_distinguished(tmp_path: Path) -> None:
    found = reading(saved(tmp_path / "m.pt", {"model": model("healthy"), "ema": model("zero")}))
    assert {gate.layer: gate.verdict for gate in found.gates} == {
        "model.layers.0.attn.gate.fc2": "healthy",
        "ema.layers.0.attn.gate.fc2": "zero-initialised",
    }


def test_the_state_of_an_optimizer_is_no_gate(tmp_path: Path) -> None:
    averages = {f"layers.0.attn.gate.{name}": {"exp_avg": torch.zeros(3, 8)} for name in ("fc2.weight", "fc2.bias")}
    found = reading(saved(tmp_path / "m.pt", {"model": model("healthy"), "optimizer": {"state": averages}}))
    assert [gate.verdict for gate in found.gates] == ["healthy"]


FOREIGN = {  # tensors, and the layers that are gates
    "one layer": ({"attn.gate.weight": (3, 8), "attn.gate.bias": (3,)}, ["attn.gate"]),
    "without a bias": ({"attn.branch_gate.weight": (3, 8)}, ["attn.branch_gate"]),
    "a sequence": (
        {"attn.gate.0.weight": (8, 8), "attn.gate.0.bias": (8,), "attn.gate.2.weight": (3, 8)},
        ["attn.gate"],
    ),
    "other names": ({"attn.gate_mlp.w1.weight": (8, 4), "attn.gate_mlp.w2.weight": (3, 8)}, ["attn.gate_mlp"]),
    "a bare matrix": ({"attn.w_gate": (3, 8)}, ["attn.w_gate"]),
    "a bare matrix, turned": ({"attn.w_gate": (8, 3)}, ["attn.w_gate"]),
    "per head": ({"attn.to_strategy_combine.0.weight": (12, 8)}, ["attn.to_strategy_combine.0"]),
    "swiglu": ({"mlp.gate_proj.weight": (24, 8), "mlp.up_proj.weight": (24, 8)}, []),
    "router": ({"mlp.gate.weight": (8, 8)}, []),
    "none": ({"attn.q_proj.weight": (8, 8)}, []),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_gates_of_other_implementations_are_found(name: str, tmp_path: Path) -> None:
    shapes, layers = FOREIGN[name]
    tensors = {key: torch.randn(shape) * 0.1 for key, shape in shapes.items()}
    found = reading(saved(tmp_path / "m.pt", tensors))
    assert [gate.layer for gate in found.gates] == layers
    assert {gate.verdict for gate in found.gates} <= {"healthy"}


@pytest.mark.parametrize(
    "pattern", ["mix", "*.mix.*", r"attn\.mix\.weight$", "attn.mix", "blocks.*.mix.weight", ".*mix"]
)
def test_a_pattern_says_what_gates_are_called(pattern: str, tmp_path: Path) -> None:
    tensors = {
        "blocks.0.attn.mix.weight": torch.zeros(3, 8),
        "blocks.0.attn.mix.bias": torch.zeros(3),
        "w": torch.ones(2),
    }
    found = reading(saved(tmp_path / "m.pt", {"model": tensors}), pattern=pattern)
    assert [(gate.layer, gate.verdict) for gate in found.gates] == [("blocks.0.attn.mix", "zero-initialised")]


def test_a_pattern_that_matches_both_layers_finds_one_gate(tmp_path: Path) -> None:
    tensors = {"mix.fc1.weight": torch.randn(8, 8), "mix.fc2.weight": torch.randn(3, 8)}
    found = reading(saved(tmp_path / "m.pt", tensors), pattern="mix").gates
    assert [(gate.module, gate.form) for gate in found] == [("mix.fc2", "linear 8 to 8, SiLU, linear 8 to 3, softmax")]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*a){25}$"])
def test_a_pattern_that_backtracks_for_ever_is_ended(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_names, "bounded", lambda pattern: bounded(pattern, seconds=0.1))
    path = saved(tmp_path / "m.pt", {f"{'a' * 60}b.weight": torch.ones(3, 8)})
    answer = answered({**asdict(ReadRequest(pattern=pattern)), "path": path, "since": None})
    assert answer["read"]["fault"] == "limit"
    assert f"--pattern {pattern!r} takes more than 0.1 s" in answer["read"]["sentence"]
