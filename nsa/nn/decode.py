"""Decoding: fill a cache from a prompt, then one token at a time."""

from collections.abc import Callable
from functools import partial
from math import isfinite

import torch
from jaxtyping import Int
from torch import Tensor

from nsa.backends import prefill_is_batched
from nsa.nn.attention import NSAttention
from nsa.nn.cache import NSACache
from nsa.nn.graph import StepGraph, why_not_captured
from nsa.nn.transformer import Transformer
from nsa.types import Hidden, Logits, TokenIds

_LEAST_CAPTURED = 16  # steps that are worth capturing one


def prefill(model: NSAttention | Transformer, x: Tensor, cache: NSACache | list[NSACache]) -> Hidden | Logits:
    """`model(x, cache)` for a prompt: in one call, or token by token under NSA_PREFILL_BATCHED=0; equal to rounding."""
    return _prefill(partial(model, cache=cache), x)


@torch.no_grad()
def generate(
    model: Transformer,
    ids: TokenIds,
    num_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    cuda_graph: bool | None = None,
) -> Int[Tensor, "B longer"]:
    """Continue each row of `ids` by `num_tokens` tokens; returns prompt and continuation.

    temperature 0 takes the argmax; above 0 it divides the logits before a token is drawn from the `top_k`
    largest (from all, if None) with `generator`, whose seed makes the draw reproducible.
    cuda_graph: capture one step and replay it for all that follow. None does so where it can serve and there are
    enough of them; True raises ValueError with the reason where it cannot.
    """
    _check(model.config.vocab_size, ids, num_tokens, temperature, top_k)
    if cuda_graph and not ids.is_cuda:
        raise ValueError(f"cuda_graph must be False or None without a CUDA device, got True and ids on {ids.device}")
    cache = model.new_cache(ids.shape[0], ids.shape[1] + num_tokens)
    parts = [ids]
    following: Callable[[Tensor], Tensor] = partial(_logits_after, model, cache)
    for index in range(num_tokens):
        if index == 2 and _is_captured(model, cache, parts[-1], num_tokens - index, cuda_graph):
            following = StepGraph(model, cache, parts[-1])  # the step before has compiled what is captured
        parts.append(_choose(following(parts[-1]), temperature, top_k, generator).to(ids.dtype))
    return torch.cat(parts, dim=1)


def _logits_after(model: Transformer, cache: list[NSACache], ids: Tensor) -> Tensor:
    """The logits [B, vocab] of the token after `ids`."""
    hidden = _prefill(partial(model.hidden_states, cache=cache), ids)
    return model.logits(hidden[:, -1:])[:, 0]


def _is_captured(
    model: Transformer, cache: list[NSACache], ids: Tensor, num_steps: int, cuda_graph: bool | None
) -> bool:
    """Whether the steps from here on are replayed; raises ValueError where they cannot be and must."""
    if cuda_graph is False or (cuda_graph is None and num_steps < _LEAST_CAPTURED):
        return False
    why_not = why_not_captured(model, cache, ids)
    if cuda_graph and why_not is not None:
        raise ValueError(f"cuda_graph=True cannot serve: {why_not}; use cuda_graph=None to let it choose")
    return why_not is None


def _prefill(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if prefill_is_batched():
        return step(x)
    return torch.cat([step(token) for token in x.split(1, dim=1)], dim=1)


def _choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """[B, vocab] -> the next token of each row [B, 1]."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    best, index = wide.topk(top_k or wide.shape[-1], dim=-1)
    behind = best - best[:, :1]  # zero or less, so that no temperature makes +inf of it; nor NaN, above the smallest
    smallest = torch.finfo(wide.dtype).tiny
    drawn = torch.multinomial((behind / max(temperature, smallest)).softmax(-1), 1, generator=generator)
    return index.gather(-1, drawn)


def _check(vocab_size: int, ids: Tensor, num_tokens: int, temperature: float, top_k: int | None) -> None:
    if 0 in ids.shape:
        raise ValueError(f"ids must hold at least one row of one token, got {list(ids.shape)}")
    if num_tokens < 0:
        raise ValueError(f"num_tokens must be at least 0, got {num_tokens}")
    if not (temperature >= 0 and isfinite(temperature)):
        raise ValueError(f"temperature must be finite and at least 0, got {temperature}")
    if top_k is not None and temperature == 0:
        raise ValueError("top_k has no effect at temperature 0, which takes the likeliest token; leave it out")
    if top_k is not None and not 1 <= top_k <= vocab_size:
        raise ValueError(f"top_k must be between 1 and the vocabulary's {vocab_size}, got {top_k}")
