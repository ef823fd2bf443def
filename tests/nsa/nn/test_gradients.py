"""Autograd agrees with finite differences in float64, and every parameter gets a gradient."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from nsa import NSAttention, Transformer

TINY: dict[str, object] = {
    "dim": 6,
    "n_heads": 2,
    "n_kv_groups": 1,
    "d_k": 4,
    "d_v": 3,
    "l": 2,
    "d": 2,
    "l_sel": 2,
    "w": 3,
}
VARIANTS: dict[str, dict[str, object]] = {
    "avg-softmax": {"phi": "avg", "gate_temperature": 0.5},
    "mlp-sigmoid": {"phi": "mlp", "gate": "sigmoid", "l_sel": 4, "l": 4},
    "conv-shared": {"phi": "conv", "shared_kv": True, "n_heads": 4, "n_kv_groups": 2},
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_layer_gradient_is_right_for_input_and_every_parameter(
    make_attention: Callable[..., NSAttention], variant: str
) -> None:
    layer = make_attention(**{**TINY, **VARIANTS[variant]})
    x = torch.randn(2, 5 * layer.geometry.l_sel + 1, 6, dtype=torch.float64, requires_grad=True)
    slots = layer.branches(x.detach()).slots
    assert (slots.amax(dim=(0, 2, 3)) >= 4).any()  # more blocks than slots: there was a choice to hold
    names = [name for name, _ in layer.named_parameters()]

    def call(x: Tensor, *values: Tensor) -> Tensor:
        out: Tensor = functional_call(layer, dict(zip(names, values, strict=True)), (x,), {"slots": slots})
        return out

    assert torch.autograd.gradcheck(call, (x, *layer.parameters()), fast_mode=True)


@pytest.mark.parametrize("seed", range(3), ids=lambda seed: f"seed{seed}")
def test_model_gradient_agrees_with_a_directional_derivative(make_model: Callable[..., Transformer], seed: int) -> None:
    torch.manual_seed(seed)
    model = make_model(phi="mlp", n_layers=3, tie_embeddings=bool(seed % 2))
    ids, targets = torch.randint(0, 29, (2, 2, 41))
    parameters = list(model.parameters())
    directions = [torch.randn_like(parameter) for parameter in parameters]

    def loss() -> Tensor:
        return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

    def shifted_loss(step: float) -> float:
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=step)
            value = loss().item()
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=-step)
        return value

    gradients = torch.autograd.grad(loss(), parameters)
    expected = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))

    def difference(step: float) -> float:
        return (shifted_loss(step) - shifted_loss(-step)) / (2 * step)

    step = 2e-5
    measured = (4 * difference(step) - difference(2 * step)) / 3  # Richardson: the error falls with step⁴
    rounding = 64 * torch.finfo(torch.float64).eps * abs(loss().item()) / step
    assert abs(measured - expected) <= rounding + 1e3 * step**2 * abs(expected)


def test_every_parameter_of_the_model_gets_a_gradient(make_model: Callable[..., Transformer]) -> None:
    model = make_model(phi="mlp", tie_embeddings=False)
    model(torch.arange(29).repeat(2)[None]).square().sum().backward()
    peaks = {
        name: parameter.grad.abs().max() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    assert peaks.keys() == dict(model.named_parameters()).keys()
    for name, peak in peaks.items():
        assert peak > 1e-6 * max(peaks.values()), name  # above what rounding alone leaves


def test_model_learns_to_repeat(make_config: Callable[..., object]) -> None:
    model = Transformer(make_config(dim=32, n_layers=1))  # type: ignore[arg-type]
    ids = torch.arange(40).remainder(29).expand(2, -1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
