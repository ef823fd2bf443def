"""No token knows of a later one: neither its values nor its gradient."""

from collections.abc import Callable

import pytest
import torch

from nsa import NSAttention, Transformer

BRANCHES = ("compressed", "selected", "sliding", "gated")
VARIANTS: dict[str, dict[str, object]] = {
    "avg": {"phi": "avg"},
    "mlp": {"phi": "mlp", "l": 8, "d": 4},
    "conv": {"phi": "conv", "shared_kv": True, "w": 1},
}
LENGTH = 44


@pytest.fixture(params=list(VARIANTS))
def attention(request: pytest.FixtureRequest, make_attention: Callable[..., NSAttention]) -> NSAttention:
    return make_attention(**VARIANTS[request.param])


@torch.no_grad()
def test_perturbing_any_token_changes_no_earlier_output(
    attention: NSAttention, assert_close: Callable[..., None]
) -> None:
    x = torch.randn(1, LENGTH, 24, dtype=torch.float64)
    before = attention.branches(x)
    for token in range(LENGTH):
        disturbed = x.clone()
        disturbed[:, token] += 1e4
        after = attention.branches(disturbed)
        for name in BRANCHES:
            assert not torch.equal(getattr(after, name), getattr(before, name)) or name == "compressed"
            if token:
                assert_close(getattr(after, name)[:, :token], getattr(before, name)[:, :token])


def test_no_gradient_flows_to_a_later_token(attention: NSAttention) -> None:
    x = torch.randn(1, LENGTH, 24, dtype=torch.float64, requires_grad=True)
    outputs = attention.branches(x)
    for name in BRANCHES:
        for token in sorted({length - 1 for length in attention.geometry.change_lengths(LENGTH)} | {1, 20}):
            scalar = getattr(outputs, name)[:, token].square().sum()
            (grad,) = torch.autograd.grad(scalar, x, retain_graph=True)
            assert not grad[:, token + 1 :].any(), f"{name} of token {token}"
            if name == "compressed":
                last_seen = attention.geometry.num_compressed(token + 1)
                assert bool(grad.any()) == (last_seen > 0)
            else:
                assert grad[:, token].any(), f"{name} of token {token} ignores the token itself"


def test_model_logits_ignore_later_tokens(
    make_model: Callable[..., Transformer], assert_close: Callable[..., None]
) -> None:
    model = make_model(phi="mlp")
    ids = torch.randint(0, 29, (2, LENGTH))
    with torch.no_grad():
        before = model(ids)
        for token in range(1, LENGTH, 2):
            changed = ids.clone()
            changed[:, token:] = (changed[:, token:] + 7) % 29
            assert_close(model(changed)[:, :token], before[:, :token])
