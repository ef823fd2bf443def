from typing import Literal

import pytest
import torch

from nsa.nn.gate import Gate
from tests.nsa.gate_equation import gate_weights


@pytest.mark.parametrize(
    ("kind", "temperature"), [("softmax", 1.0), ("softmax", 0.3), ("sigmoid", 1.0)], ids=["softmax", "sharp", "sigmoid"]
)
def test_gate_equals_the_oracle(kind: Literal["softmax", "sigmoid"], temperature: float) -> None:
    gate = Gate(8, kind, temperature).double()
    for parameter in gate.parameters():
        torch.nn.init.normal_(parameter)
    query_mean = torch.randn(2, 5, 3, 8, dtype=torch.float64)
    weights = (gate.fc1.weight, gate.fc1.bias, gate.fc2.weight, gate.fc2.bias)
    expected = gate_weights(query_mean, *weights, kind, temperature)
    torch.testing.assert_close(gate(query_mean), expected, rtol=1e-13, atol=0)


def test_gate_starts_near_equal_yet_depends_on_its_input() -> None:
    gate = Gate(64, "softmax")
    weights = gate(torch.randn(1, 50, 2, 64))
    assert torch.count_nonzero(gate.fc2.bias) == 0
    assert gate.fc2.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert (weights - 1 / 3).abs().max() < 0.2
    assert weights.std(dim=1).min() > 1e-4


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_gate_learns_from_the_first_step(kind: Literal["softmax", "sigmoid"]) -> None:
    gate = Gate(8, kind)
    gate(torch.randn(1, 4, 1, 8))[..., 0].sum().backward()
    for name, parameter in gate.named_parameters():
        assert parameter.grad is not None
        assert torch.count_nonzero(parameter.grad), name


@pytest.mark.parametrize("scale", [1e4, -1e4], ids=["huge", "minus-huge"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_extreme_logits_stay_finite_forward_and_backward(scale: float, dtype: torch.dtype) -> None:
    gate = Gate(8, "softmax", temperature=0.1).to(dtype)
    torch.nn.init.constant_(gate.fc2.bias, scale)
    with torch.no_grad():
        gate.fc2.bias[0] = -scale
    query_mean = torch.randn(1, 4, 1, 8, dtype=dtype, requires_grad=True)
    weights = gate(query_mean)
    weights.sum().backward()
    assert weights.isfinite().all()
    assert query_mean.grad is not None
    assert query_mean.grad.isfinite().all()
