"""Calls that a signature offers beside the declared ones: pages, a bias beside a mask, fewer blocks than slots."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.core.finding import Finding
from tests.nsa_doctor.functions.examined import results, subject_of
from tests.nsa_doctor.functions.healthy import kvcache, sparse

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2, 3))]


def paged(next_page_at: int) -> Callable[..., Tensor]:
    """Reads the next page's slot at that place of each page; at none for a place that no page has."""

    def attend(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        cache_seqlens: Tensor | None = None,
        block_table: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        if block_table is not None:
            size = k_cache.shape[1]
            token = torch.arange(block_table.shape[1] * size)
            number = (token // size + (token % size == next_page_at)).clamp_max(block_table.shape[1] - 1)
            pages = block_table[:, number].long()
            k_cache, v_cache = k_cache[pages, token % size], v_cache[pages, token % size]
        return kvcache(q, k_cache, v_cache, cache_seqlens=cache_seqlens, softmax_scale=softmax_scale, causal=causal)

    return attend


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.sizes = bias.shape
        return bias.expand(sizes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        shared = [i for i, size in enumerate(ctx.sizes) if size == 1]
        return gradients[0].mean(shared, keepdim=True) if shared else gradients[0], None


def biased(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """Takes the mean of a shared bias' gradients where their sum is due."""
    if attn_mask is not None and attn_mask.requires_grad:
        attn_mask = _Mean.apply(attn_mask, (*query.shape[:3], key.shape[2]))
    return scaled_dot_product_attention(query, key, value, attn_mask)


def counts_nothing(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g_slc: Tensor,
    g_swa: Tensor,
    block_indices: Tensor,
    block_counts: Tensor,
    block_size: int,
    window_size: int,
    scale: float | None = None,
) -> Tensor:
    """Takes slots that hold no block for the first block."""
    every = torch.full_like(block_counts, block_indices.shape[-1])
    return sparse(q, k, v, g_slc, g_swa, block_indices, every, block_size, window_size, scale)


def divides(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """Divides by the sum of no weights where a row is hidden altogether."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = scores if attn_mask is None else scores.masked_fill(~attn_mask, -1e30)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = weights if attn_mask is None else weights * attn_mask
    total = weights.sum(-1, keepdim=True)
    return (weights / total) @ value


def found(function: Callable[..., Any], like: str, spec: str, code: str, seed: int = 0) -> list[Finding]:
    """The findings of one check."""
    return list(results(subject_of(function, like, spec, seed=seed), [code])[code].findings)


@pytest.mark.parametrize(
    ("function", "like", "spec", "tensor", "what"),
    [
        (paged(15), "flash_kvcache", "causal", "out", "with a block_table"),
        (biased, "sdpa", "mask", "dbias", "with a float mask [1, H, 1, Sk]"),
        (counts_nothing, "nsa", "topk=3,block=16,window=20,gqa=4", "out", "with fewer blocks than slots"),
    ],
    ids=["pages", "bias beside a mask", "fewer blocks"],
)
def test_a_wrong_use_is_found(function: Callable[..., Any], like: str, spec: str, tensor: str, what: str) -> None:
    first, *_ = found(function, like, spec, "FUN305")
    assert first.evidence["tensor"] == tensor
    assert first.message.startswith(what)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("function", "like", "spec"),
    [
        (paged(-1), "flash_kvcache", "causal"),
        (scaled_dot_product_attention, "sdpa", "mask"),
        (sparse, "nsa", "topk=3,block=16,window=20,gqa=4"),
    ],
    ids=["pages", "bias beside a mask", "fewer blocks"],
)
def test_a_right_use_is_silent(function: Callable[..., Any], like: str, spec: str, seed: int) -> None:
    assert found(function, like, spec, "FUN305", seed) == []


def test_the_line_is_named_that_makes_the_first_nan_of_a_row_without_keys() -> None:
    (finding,) = (each for each in found(divides, "sdpa", "mask", "FUN306") if each.evidence["tensor"] == "out")
    assert Path(finding.where.file).read_text().splitlines()[finding.where.line - 1].strip() == (
        "return (weights / total) @ value"
    )
