"""What the tests of the model for transformers share: small models in float64 in which every parameter matters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nsa import ModelConfig, Transformer

SMALL: dict[str, Any] = {
    "dim": 24, "n_heads": 4, "n_kv_groups": 2, "d_k": 6, "d_v": 5, "l": 4, "d": 2, "l_sel": 8, "n_sel": 4, "w": 7,
    "n_layers": 2, "vocab_size": 29, "mlp_dim": 20,
}  # fmt: skip


@pytest.fixture
def make_transformer() -> Callable[..., Transformer]:
    """A float64 Transformer with random parameters; config fields by keyword."""

    def make(impl: Any = "auto", **changes: Any) -> Transformer:
        model = Transformer(ModelConfig.model_validate({**SMALL, **changes}), impl).double()
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn_like(parameter)
                wide = noise * 1.5 * parameter.shape[-1] ** -0.5
                parameter.copy_(wide if parameter.dim() > 1 else parameter + noise / 2)
        return model

    return make


@pytest.fixture
def make_model(make_transformer: Callable[..., Transformer]) -> Callable[..., Any]:
    """The same as an NSAForCausalLM, for inference."""

    def make(**changes: Any) -> Any:
        from nsa.hf import from_transformer

        return from_transformer(make_transformer(**changes)).eval()

    return make


@pytest.fixture
def ids() -> torch.Tensor:
    """Three rows of 40 tokens, beyond the window and several selection blocks."""
    return torch.randint(1, 29, (3, 40), generator=torch.Generator().manual_seed(1))
