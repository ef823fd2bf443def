"""What the tests of the modules share: small models in which every parameter matters."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa import ModelConfig, NSAttention, Transformer

SMALL: dict[str, object] = {
    "dim": 24, "n_heads": 4, "n_kv_groups": 2, "d_k": 6, "d_v": 5, "l": 4, "d": 2, "l_sel": 8, "n_sel": 4, "w": 7,
    "n_layers": 2, "vocab_size": 29, "mlp_dim": 20,
}  # fmt: skip


def randomise(module: nn.Module) -> None:
    """Give every parameter a value of its own, of a size that keeps softmaxes soft: zeros and ones hide bugs."""
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else parameter + noise / 2)


@pytest.fixture
def make_config() -> Callable[..., ModelConfig]:
    """A small ModelConfig (which is an NSAConfig too), with any field replaced."""
    return lambda **changes: ModelConfig.model_validate({**SMALL, **changes})


@pytest.fixture
def make_attention(make_config: Callable[..., ModelConfig]) -> Callable[..., NSAttention]:
    """A float64 layer with random parameters; `impl` and config fields by keyword."""

    def make(impl: str = "auto", **changes: object) -> NSAttention:
        module = NSAttention(make_config(**changes), impl).double()
        randomise(module)
        return module

    return make


@pytest.fixture
def make_model(make_config: Callable[..., ModelConfig]) -> Callable[..., Transformer]:
    """A float64 Transformer with random parameters; config fields by keyword."""

    def make(**changes: object) -> Transformer:
        model = Transformer(make_config(**changes)).double()
        randomise(model)
        return model

    return make


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Fails unless got equals expected up to rounding: of `num_terms` summed terms, each as large as the peak."""

    def check(got: Tensor, expected: Tensor, num_terms: int = 512) -> None:
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        error = (got - expected).abs().amax().item()
        bound = num_terms * torch.finfo(got.dtype).eps * expected.abs().amax().item()
        assert error <= bound, f"error {error:.2e}, bound {bound:.2e}"

    return check
