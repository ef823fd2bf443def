from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import silu

from nsa import ModelConfig, Transformer, load_config
from nsa.nn.transformer import default_mlp_dim


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_model_is_embedding_blocks_norm_head(
    make_model: Callable[..., Transformer], is_tied: bool, assert_close: Callable[..., None]
) -> None:
    model = make_model(tie_embeddings=is_tied, norm_eps=1e-2)
    ids = torch.randint(0, 29, (2, 19))

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-2) ** -0.5 * weight

    x = model.embedding.weight[ids]
    for block in model.blocks:
        x = x + block.attention(norm(x, block.attention_norm.weight))
        gate, up = (norm(x, block.mlp_norm.weight) @ block.mlp.gate_up.weight.T).split(20, dim=-1)
        x = x + (silu(gate) * up) @ block.mlp.down.weight.T
    head = model.embedding.weight if is_tied else model.head.weight  # type: ignore[union-attr]
    assert_close(model(ids), norm(x, model.norm.weight) @ head.T)


def test_tied_head_has_no_parameter_of_its_own(make_config: Callable[..., ModelConfig]) -> None:
    tied, untied = (
        sum(parameter.numel() for parameter in Transformer(make_config(tie_embeddings=flag)).parameters())
        for flag in (True, False)
    )
    assert untied - tied == 29 * 24


def test_weights_start_as_documented(make_config: Callable[..., ModelConfig]) -> None:
    model = Transformer(make_config(dim=256, n_layers=8, n_heads=16, d_k=16, d_v=16, mlp_dim=None, vocab_size=500))
    block = model.blocks[0]
    expected = {
        model.embedding.weight: 0.02,
        block.attention.qkv.q: 0.02,
        block.attention.qkv.k_sel: 0.02,
        block.attention.out_proj.weight: 0.02 / 4,
        block.mlp.gate_up.weight: 0.02,
        block.mlp.down.weight: 0.02 / 4,
        block.attention.gate.fc1.weight: 16**-0.5,
        block.attention.gate.fc2.weight: 0.02,
    }
    for weight, std in expected.items():
        error_of_estimate = (2 * weight.numel()) ** -0.5
        assert weight.std().item() == pytest.approx(std, rel=5 * error_of_estimate)
    assert torch.equal(block.mlp_norm.weight, torch.ones(256))


@pytest.mark.parametrize(("dim", "expected"), [(768, 2048), (128, 384), (24, 64), (1, 64)])
def test_mlp_width_is_eight_thirds_rounded_up_to_64(dim: int, expected: int) -> None:
    assert default_mlp_dim(dim) == expected


def test_mlp_width_follows_the_configuration(make_config: Callable[..., ModelConfig]) -> None:
    assert Transformer(make_config(mlp_dim=36)).blocks[0].mlp.down.in_features == 36
    assert Transformer(make_config(mlp_dim=None)).blocks[0].mlp.down.in_features == 64


def test_reported_model_has_the_size_it_is_named_for() -> None:
    with torch.device("meta"):
        model = Transformer(load_config("m7c_125m_fast_log").model)
    assert 115e6 < sum(parameter.numel() for parameter in model.parameters()) < 135e6


def test_untrained_model_is_as_unsure_as_its_vocabulary_is_large(make_config: Callable[..., ModelConfig]) -> None:
    model = Transformer(make_config(dim=64, vocab_size=300))
    ids = torch.randint(0, 300, (4, 50))
    loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())
    assert loss.item() == pytest.approx(torch.tensor(300.0).log().item(), abs=0.2)


def test_unknown_token_is_refused(make_model: Callable[..., Transformer]) -> None:
    with pytest.raises(IndexError):
        make_model()(torch.tensor([[29]]))
