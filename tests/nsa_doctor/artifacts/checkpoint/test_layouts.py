"""Checkpoints laid out as frameworks write them: the gate is found and judged, or one sentence says why not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import checkpoint as distributed

from nsa_doctor.artifacts.checkpoint.judging import judged
from nsa_doctor.artifacts.checkpoint.record import Reading
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.checkpoint_main import answered
from tests.hostile.case import LAYER, gate_tensors
from tests.hostile.many import USUAL

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
Weights = dict[str, Tensor]


def named(prefix: str, weights: Weights) -> Weights:
    return {f"{prefix}{name}": tensor for name, tensor in weights.items()}


def moved(weights: Weights, where: str, to: str) -> Weights:
    return {name.replace(where, to): tensor for name, tensor in weights.items()}


def shards(folder: Path, weights: Weights) -> None:
    files = {name: f"model-0000{index % 2 + 1}-of-00002.safetensors" for index, name in enumerate(weights)}
    for file in set(files.values()):
        save_file({name: weights[name] for name, of in files.items() if of == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "config.json").write_text("{}")


def pieces(folder: Path, weights: Weights) -> None:
    state = {"state": {name: {"exp_avg": torch.zeros_like(tensor)} for name, tensor in weights.items()}}
    distributed.save({"app": {"model": weights, "optim": state}}, checkpoint_id=folder, no_dist=True)


def deepspeed(weights: Weights) -> object:
    shapes = [{name: tensor.shape for name, tensor in weights.items()}]
    return {"module": named("module.", weights), "optimizer": None, "param_shapes": shapes, "ds_config": {}}


def saved(make: Callable[[Weights], object]) -> Callable[[Path, Weights], None]:
    return lambda folder, weights: torch.save(make(weights), folder / "pytorch_model.bin")


LAYOUTS: dict[str, Callable[[Path, Weights], None]] = {
    "shards-with-an-index": shards,
    "distributed-with-an-optimizer": pieces,
    "deepspeed": saved(deepspeed),
    "model-beside-an-optimizer": saved(lambda w: {"model": w, "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}}),
    "lightning": saved(lambda w: {"state_dict": named("model.", w), "hyper_parameters": {"lr": 0.1}}),
    "data-parallel": saved(lambda w: named("module.", w)),
    "compiled": saved(lambda w: named("_orig_mod.", w)),
    "compiled-in-data-parallel": saved(lambda w: {"model": named("module._orig_mod.", w)}),
    "compiled-layer-by-layer": saved(lambda w: moved(w, "attn.", "attn._orig_mod.")),
    "fsdp-with-checkpointing": saved(lambda w: moved(w, ".0.", ".0._fsdp_wrapped_module._checkpoint_wrapped_module.")),
    "megatron": saved(lambda w: {"model": {"language_model": {"encoder": w}}, "iteration": 4}),
    "peft-that-saves-gates": saved(lambda w: named("base_model.model.", moved(w, "gate.", "gate.modules_to_save."))),
}
LOW = {"lora_A.weight": torch.ones(4, 8), "lora_B.weight": torch.zeros(3, 4)}
OPEN: dict[str, tuple[Callable[[Path, Weights], None], str]] = {
    "adapter-of-a-gate": (saved(lambda w: named(f"base_model.model.{LAYER}.fc2.", LOW)), "computed of several tensors"),
    "gate-with-an-adapter": (
        saved(lambda w: moved(w, "fc2.", "fc2.base_layer.") | named(f"{LAYER}.fc2.", LOW)),
        "computed of several tensors",
    ),
    "adapter-of-a-projection": (saved(lambda w: named("base_model.model.q_proj.", LOW)), "no gate was found"),
    "flat-parameter": (saved(lambda w: {"_flat_param": torch.ones(99)}), "no gate was found"),
}


def read(folder: Path) -> tuple[str, str]:
    """The decision, and why what is missing is missing."""
    answer = answered({**USUAL, "path": str(folder)})
    assert "broke" not in answer, answer["traceback"]
    required = [result for result in judged(Reading.from_json(answer["read"]), ()) if result.is_required]
    verdicts = {result.verdict for result in required}
    decision = "NO-GO" if Verdict.FAIL in verdicts else "UNKNOWN" if Verdict.SKIP in verdicts else "GO"
    return decision, "; ".join(result.reason for result in required)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_healthy_gate_is_a_go(layout: str, tmp_path: Path) -> None:
    LAYOUTS[layout](tmp_path, gate_tensors())
    assert read(tmp_path)[0] == "GO"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gate_of_zeros_is_no_go(layout: str, tmp_path: Path) -> None:
    zeros = {name: tensor * 0 if "fc2" in name else tensor for name, tensor in gate_tensors().items()}
    LAYOUTS[layout](tmp_path, zeros)
    assert read(tmp_path)[0] == "NO-GO"


@pytest.mark.parametrize("layout", OPEN)
def test_what_cannot_be_judged_is_unknown_and_says_why(layout: str, tmp_path: Path) -> None:
    make, says = OPEN[layout]
    make(tmp_path, gate_tensors())
    decision, why = read(tmp_path)
    assert decision == "UNKNOWN"
    assert says in why
