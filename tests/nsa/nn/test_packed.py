"""Sequences packed into one row give what each gives alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nsa import NSAttention, Transformer

VARIANTS: dict[str, dict[str, object]] = {
    "avg": {"phi": "avg"},
    "mlp-sigmoid": {"phi": "mlp", "gate": "sigmoid"},
    "conv-shared": {"phi": "conv", "shared_kv": True},
}
LENGTHS = [1, 37, 0, 3, 45, 8]
OFFSETS = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@pytest.fixture(params=list(VARIANTS))
def attention(request: pytest.FixtureRequest, make_attention: Callable[..., NSAttention]) -> NSAttention:
    return make_attention(**VARIANTS[request.param])


def separately(call: Callable[[Tensor], Tensor], row: Tensor) -> Tensor:
    return torch.cat([call(part) for part in row.split(LENGTHS, dim=1) if part.shape[1]], dim=1)


def test_packed_equals_separate_in_values_and_every_gradient(
    attention: NSAttention, assert_close: Callable[..., None]
) -> None:
    x = torch.randn(1, sum(LENGTHS), 24, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)
    packed, alone = attention(x, cu_seqlens=OFFSETS), separately(attention, x)
    assert_close(packed.detach(), alone.detach())
    inputs = (x, *attention.parameters())
    for got, expected in zip(
        torch.autograd.grad(packed, inputs, upstream), torch.autograd.grad(alone, inputs, upstream), strict=True
    ):
        assert_close(got, expected)


def test_packed_branches_equal_separate_ones(attention: NSAttention, assert_close: Callable[..., None]) -> None:
    x = torch.randn(1, sum(LENGTHS), 24, dtype=torch.float64)
    packed = attention.branches(x, cu_seqlens=OFFSETS)
    for name in ("compressed", "selected", "sliding", "gated", "gates"):
        expected = separately(lambda part, name=name: getattr(attention.branches(part), name), x)
        assert_close(getattr(packed, name), expected)


def test_packed_model_equals_separate(
    make_model: Callable[..., Transformer], assert_close: Callable[..., None]
) -> None:
    model = make_model(phi="mlp")
    ids = torch.randint(0, 29, (1, sum(LENGTHS)))
    assert_close(model(ids, cu_seqlens=OFFSETS).detach(), separately(model, ids).detach())


@pytest.mark.parametrize(
    "offsets",
    [[1, 94], [0, 50, 40, 94], [0, 93], [0, 95], [0], []],
    ids=["starts-late", "falls", "ends-early", "ends-late", "one-entry", "empty"],
)
def test_bad_offsets_are_refused(make_attention: Callable[..., NSAttention], offsets: list[int]) -> None:
    x = torch.randn(1, 94, 24, dtype=torch.float64)
    with pytest.raises(ValueError, match="cu_seqlens"):
        make_attention()(x, cu_seqlens=torch.tensor(offsets, dtype=torch.int32))


def test_packing_needs_a_single_row(make_attention: Callable[..., NSAttention]) -> None:
    with pytest.raises(ValueError, match="one row"):
        make_attention()(torch.randn(2, 9, 24, dtype=torch.float64), cu_seqlens=torch.tensor([0, 9], dtype=torch.int32))
