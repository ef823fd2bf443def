"""A gate of a shape, layout or dtype that is not understood is named and leaves the verdict open."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nsa_doctor.artifacts.checkpoint.judging import judged
from nsa_doctor.core.finding import Verdict
from tests.nsa_doctor.artifacts.checkpoint.test_gate_stats import layer, model, reading, saved

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about its own kinds of tensors
GATE = "attn.gate.fc2.weight"


def decision(path: str) -> Verdict:
    """The gravest end of what is required of a file."""
    ends = {result.verdict for result in judged(reading(path), ()) if result.is_required}
    return next(verdict for verdict in (Verdict.FAIL, Verdict.CRASH, Verdict.SKIP, Verdict.PASS) if verdict in ends)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.1


def quantised(values: Tensor, dtype: torch.dtype = torch.qint8, zero: int = 0) -> Tensor:
    return torch.quantize_per_tensor(values, 0.01, zero, dtype)


def per_channel(values: Tensor, dtype: torch.dtype, zeros: Tensor) -> Tensor:
    return torch.quantize_per_channel(values, torch.tensor([0.01, 0.02, 0.03]), zeros, 0, dtype)


ODD: dict[str, tuple[Callable[[], Tensor], str]] = {
    "0-d": (lambda: torch.tensor(0.5), "its shape is []"),
    "1-d": (lambda: drawn(48), "its shape is [48]"),
    "3-d": (lambda: drawn(1, 3, 16), "its shape is [1, 3, 16]"),
    "7-d": (lambda: drawn(1, 1, 1, 1, 1, 3, 16), "its shape is [1, 1, 1, 1, 1, 3, 16]"),
    "without rows": (lambda: torch.empty(0, 16), "its shape is [0, 16]: it has no values"),
    "without columns": (lambda: torch.empty(3, 0), "its shape is [3, 0]: it has no values"),
    "coo": (lambda: drawn(3, 16).to_sparse(), "it is sparse (sparse_coo)"),
    "csr": (lambda: drawn(3, 16).to_sparse_csr(), "it is sparse (sparse_csr)"),
    "csc": (lambda: drawn(3, 16).to_sparse_csc(), "it is sparse (sparse_csc)"),
    "nested": (lambda: torch.nested.nested_tensor([drawn(2, 3), drawn(1, 3)]), "it is nested"),
    "meta": (lambda: drawn(3, 16).to("meta"), "it is a meta tensor"),
    "int8": (lambda: torch.ones(3, 16, dtype=torch.int8), "of dtype int8"),
    "int4 in bytes": (lambda: torch.ones(24, 1, dtype=torch.uint8), "of dtype uint8"),
    "bool": (lambda: torch.ones(3, 16, dtype=torch.bool), "of dtype bool"),
    "complex": (lambda: drawn(3, 16) + 1j, "complex"),
    "bits": (lambda: torch.ones(3, 16, dtype=torch.uint8).view(torch.bits8), "dtype bits8"),
    "fp4": (lambda: torch.ones(3, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "float4_e2m1fn_x2"),
    "quint4x2": (lambda: per_channel(drawn(3, 16), torch.quint4x2, torch.zeros(3)), "packed"),
    "negated": (lambda: torch._neg_view(drawn(3, 16)), "the bits 'neg'"),
}


@pytest.mark.parametrize("beside", ["alone", "beside healthy gates"])
@pytest.mark.parametrize("name", ODD)
def test_a_gate_that_is_not_understood_is_named(name: str, beside: str, tmp_path: Path) -> None:
    make, says = ODD[name]
    others = {} if beside == "alone" else model("healthy", "healthy")
    path = saved(tmp_path / "m.pt", {**others, **layer(0), GATE: make()})
    (gate,) = (gate for gate in reading(path).gates if gate.layer == "attn.gate")
    assert says in gate.unprobed
    assert gate.illnesses == ()
    assert decision(path) is Verdict.SKIP


# Tensors of a gate that no layer of a usual kind is made of.
BY_NAME: dict[str, dict[str, Tensor]] = {
    "of another implementation": {"attn.gate.weight": torch.zeros(2, 3, 8)},
    "a bare scalar": {"attn.branch_gate": torch.tensor(0.0)},
    "packed by gptq": {"attn.gate.qweight": torch.ones(2, 3, dtype=torch.int32), "attn.gate.scales": torch.ones(1, 3)},
    "packed by bitsandbytes": {"attn.gate.weight": torch.ones(12, 1, dtype=torch.uint8)},
    "weight norm": {"attn.gate.weight_g": torch.ones(3, 1), "attn.gate.weight_v": torch.zeros(3, 8)},
    "parametrized": {
        "attn.gate.parametrizations.weight.original0": torch.ones(3, 1),
        "attn.gate.parametrizations.weight.original1": torch.zeros(3, 8),
    },
    "an adapter": {
        "attn.gate.base_layer.weight": torch.zeros(3, 8),
        "attn.gate.lora_A.weight": torch.ones(2, 8),
        "attn.gate.lora_B.weight": torch.zeros(3, 2),
    },
    "scaled": {
        "attn.gate.weight": torch.zeros(3, 8).to(torch.float8_e4m3fn),
        "attn.gate.weight_scale_inv": torch.ones(1, 1),
    },
    "a bias of another shape": {"attn.gate.weight": drawn(3, 8), "attn.gate.bias": torch.tensor([[50.0, 0, 0]])},
}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_called_like_a_gate_and_not_understood_is_open(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.pt", {**BY_NAME[name], "layers.1.attn.gate.weight": drawn(3, 8)})
    assert sorted(gate.verdict for gate in reading(path).gates) == ["healthy", "not probed"]
    assert decision(path) is Verdict.SKIP


BESIDE: dict[str, dict[str, Tensor]] = {
    "fused experts": {"mlp.experts.gate_up_proj": drawn(4, 8, 8), "mlp.experts.gate_up_proj.weight": drawn(4, 8, 8)},
    "a packed router": {"mlp.gate.qweight": torch.ones(2, 8, dtype=torch.int32)},
    "a packed feed-forward": {"layers.0.feed_forward.gate_proj.qweight": torch.ones(2, 8, dtype=torch.int32)},
    "a temperature": {"attn.gate.temperature": torch.tensor(1.0), "attn.gate.weight": drawn(3, 8)},
    "a counter": {"attn.gate.num_batches_tracked": torch.tensor(3)},
    "a norm": {"attn.gate_norm.weight": torch.ones(8)},
    "an output gate": {"attn.gate.weight": drawn(64, 64)},
    "conjugated elsewhere": {"angles": (drawn(3) + 1j).conj()},
    "of an optimizer": {"optimizer.state.attn.gate.weight": drawn(2, 3, 8)},
}


def test_other_layouts_elsewhere_leave_nothing_open(tmp_path: Path) -> None:
    packed = per_channel(drawn(3, 16), torch.quint4x2, torch.zeros(3))
    path = saved(tmp_path / "m.pt", {**model("healthy"), "mask": torch.eye(3).to_sparse(), "w": packed})
    assert decision(path) is Verdict.PASS


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_no_gate_leaves_nothing_open(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.pt", {**model("healthy"), **BESIDE[name]})
    assert decision(path) is Verdict.PASS


QUANTISED: dict[str, Callable[[Tensor], Tensor]] = {
    "qint8": quantised,
    "quint8": lambda values: quantised(values, torch.quint8, 128),
    "qint32": lambda values: quantised(values, torch.qint32, -7),
    "qint8 per channel": lambda values: per_channel(values, torch.qint8, torch.tensor([0, 5, -5])),
    "quint8 per channel": lambda values: per_channel(values, torch.quint8, torch.tensor([128, 100, 140])),
    "quint8 per channel of float zeros": lambda values: per_channel(
        values, torch.quint8, torch.tensor([128.5, 99, 140])
    ),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_gate_is_judged_dequantised(name: str, tmp_path: Path) -> None:
    stored = QUANTISED[name](drawn(3, 16))
    (gate,) = reading(saved(tmp_path / "m.pt", {**layer(0), GATE: stored})).gates
    values = stored.dequantize().double().numpy()
    assert gate.verdict == "healthy"
    assert [gate.weight.mean, gate.weight.std, gate.weight.norm] == pytest.approx(
        [values.mean(), values.std(), np.linalg.norm(values)], rel=1e-5
    )


def test_a_quantised_gate_of_zeros_is_zero(tmp_path: Path) -> None:
    tensors = {**layer(0), GATE: quantised(torch.zeros(3, 16), torch.quint8, 128), "attn.gate.fc2.bias": torch.zeros(3)}
    assert [gate.verdict for gate in reading(saved(tmp_path / "m.pt", tensors)).gates] == ["zero-initialised"]


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_that_is_not_finite_is_found(scale: float, tmp_path: Path) -> None:
    scales = torch.tensor([0.01, scale, 0.01])
    zeros = torch.zeros(3, dtype=torch.long)
    stored = torch._empty_per_channel_affine_quantized(
        [3, 4], scales=scales, zero_points=zeros, axis=0, dtype=torch.qint8
    )
    whole = torch._empty_affine_quantized([4], scale=scale, zero_point=0, dtype=torch.quint8)
    path = saved(tmp_path / "m.pt", {**model("healthy"), "w": stored, "v": whole})
    assert [each.name for each in reading(path).not_finite] == ["v", "w"]


def test_constants_that_are_called_like_a_gate_are_judged(tmp_path: Path) -> None:
    found = reading(saved(tmp_path / "m.pt", {"attn.branch_weights": torch.tensor([9.0, 0, 0])}))
    assert [(gate.layer, gate.verdict) for gate in found.gates] == [("attn.branch_weights", "collapsed")]
