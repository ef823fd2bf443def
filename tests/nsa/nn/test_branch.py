"""One branch alone, as an engineer runs it to narrow a fault down."""

from collections.abc import Callable

import pytest
import torch

from nsa import ModelConfig, NSAttention, Transformer, generate

INDEX = {"cmp": 0, "sel": 1, "win": 2}


@pytest.mark.parametrize("branch", INDEX)
def test_one_branch_alone_is_that_branch(branch: str, make_attention: Callable[..., NSAttention]) -> None:
    whole, alone = make_attention(), make_attention(branch=branch)
    alone.load_state_dict(whole.state_dict())
    x = torch.randn(2, 23, 24, dtype=torch.float64)
    outputs = whole.branches(x)
    assert torch.equal(alone.branches(x).gated, outputs[INDEX[branch]])
    assert torch.equal(alone(x), whole.out_proj(outputs[INDEX[branch]].flatten(2)))


@pytest.mark.parametrize("branch", INDEX)
def test_its_gate_says_one_and_zero(branch: str, make_attention: Callable[..., NSAttention]) -> None:
    gates = make_attention(branch=branch).branches(torch.randn(1, 9, 24, dtype=torch.float64)).gates
    assert gates.sum() == gates[..., INDEX[branch]].sum() == 9 * 2


def test_the_same_parameters_serve_every_branch(make_config: Callable[..., ModelConfig]) -> None:
    weights = []
    for branch in ("all", *INDEX):
        torch.manual_seed(0)
        weights.append(Transformer(make_config(branch=branch)).state_dict())
    assert all(torch.equal(other[name], value) for other in weights for name, value in weights[0].items())
    assert all(other.keys() == weights[0].keys() for other in weights)


def test_a_branch_that_is_not_finite_does_not_reach_the_others(make_attention: Callable[..., NSAttention]) -> None:
    layer = make_attention(branch="win")
    with torch.no_grad():
        layer.qkv.v_cmp.fill_(torch.nan)
        layer.qkv.v_sel.fill_(torch.inf)
    out = layer(torch.randn(1, 23, 24, dtype=torch.float64))
    out.sum().backward()
    assert out.isfinite().all()
    assert layer.qkv.v_win.grad is not None
    assert layer.qkv.v_win.grad.isfinite().all()


def test_only_the_branch_learns(make_attention: Callable[..., NSAttention]) -> None:
    layer = make_attention(branch="sel")
    layer(torch.randn(1, 40, 24, dtype=torch.float64)).square().sum().backward()
    moved = {name for name, value in layer.named_parameters() if value.grad is not None and value.grad.any()}
    assert moved == {"qkv.q", "qkv.k_sel", "qkv.v_sel", "out_proj.weight"}


@pytest.mark.parametrize("branch", INDEX)
def test_decoding_equals_one_pass(branch: str, make_model: Callable[..., Transformer]) -> None:
    model = make_model(branch=branch)
    ids = torch.randint(0, 29, (1, 13))
    longer = generate(model, ids, 12)
    assert torch.equal(model(longer[:, :-1]).argmax(-1)[:, 12:], longer[:, 13:])
