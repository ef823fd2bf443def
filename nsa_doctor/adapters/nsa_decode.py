"""Decoding with an NSAttention layer, as checks ask for it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nsa.nn import NSACache, NSAttention
from nsa.nn import prefill as fill

_BRANCHES = ("compressed", "selected", "sliding")


@torch.no_grad()
def prefill(module: nn.Module, x: Tensor) -> tuple[Tensor, NSACache]:
    """A prompt's output and the cache it fills."""
    assert isinstance(module, NSAttention)
    cache = module.new_cache(x.shape[0])
    return fill(module, x, cache), cache


@torch.no_grad()
def step(module: nn.Module, x: Tensor, cache: NSACache) -> tuple[Tensor, NSACache]:
    """The next tokens' output; the cache takes them in."""
    return module(x, cache), cache


def fill_unwritten(cache: NSACache, value: float) -> None:
    """Overwrite what holds no token."""
    cache.fill_unwritten(value)


def cache_bytes(cache: NSACache) -> int:
    """Memory the cache holds."""
    return cache.num_bytes()


@torch.no_grad()
def cache_reads(module: nn.Module, x: Tensor) -> Mapping[str, Tensor]:
    """Keys read at every step, as the operators' own masks count them."""
    assert isinstance(module, NSAttention)
    cache = module.new_cache(x.shape[0], count_reads=True)
    totals: list[Any] = []
    for token in x.split(1, dim=1):
        module(token, cache)
        totals.append({branch: getattr(cache.reads, branch).clone() for branch in _BRANCHES})
    summed = {branch: torch.stack([total[branch] for total in totals], dim=-1) for branch in _BRANCHES}
    return {branch: total.diff(dim=-1, prepend=torch.zeros_like(total[..., :1])) for branch, total in summed.items()}
