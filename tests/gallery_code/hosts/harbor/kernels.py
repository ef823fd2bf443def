"""Attention itself: torch's fused kernel, and a plain version in chunks that also does softcap and sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .masks import causal_mask, restrict
from .utils import compute_dtype, flag, pieces, repeat_kv


@dataclass
class Call:
    """What a call of attention needs beside q, k and v."""

    q_index: Tensor
    k_index: Tensor
    scale: float
    window: int | None
    sink_tokens: int
    softcap: float | None
    sink_logits: Tensor | None
    segments: Tensor | None
    within: Tensor | None
    padding: Tensor | None
    dropout: float

    @property
    def plain(self) -> bool:
        """Whether nothing but causality limits who sees whom."""
        return self.window is None and self.segments is None and self.padding is None


def choose_path(path: str, call: Call) -> str:
    """sdpa where it can serve the call and nobody says no."""
    fits = call.softcap is None and call.sink_logits is None
    if path == "sdpa" and not fits:
        raise ValueError("sdpa knows neither softcap nor sink logits")
    if path == "eager" or not fits or not flag("HARBOR_SDPA", True):
        return "eager"
    return "sdpa"


def softmax_with_sink(scores: Tensor, sink: Tensor | None) -> Tensor:
    """Softmax over the last dimension; a sink [H] takes part in the sum and is dropped."""
    if sink is None:
        return scores.softmax(-1)
    column = sink.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    both = torch.cat((scores, column), dim=-1).softmax(-1)
    return both[..., :-1]


def eager_attention(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """q [B, H, T, D] over k and v [B, G, S, D], a chunk of queries at a time."""
    repeats = q.shape[1] // k.shape[1]
    k, v = repeat_kv(k, repeats), repeat_kv(v, repeats)
    wide = compute_dtype(q.dtype)
    outputs = []
    for start, end in pieces(q.shape[2], eager_chunk(k.shape[2])):
        q_index = call.q_index[start:end]
        mask = causal_mask(q_index, call.k_index, call.window, call.sink_tokens, call.within)
        mask = restrict(mask, call.segments, call.padding, slice(start, end), q_index, call.k_index)
        scores = (q[:, :, start:end] @ k.transpose(-1, -2)).to(wide) * call.scale
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        scores = scores.masked_fill(~mask, torch.finfo(wide).min)
        probs = softmax_with_sink(scores, call.sink_logits)
        probs = F.dropout(probs, call.dropout, training=call.dropout > 0)
        outputs.append(probs.to(v.dtype) @ v)
    return torch.cat(outputs, dim=2)


def eager_chunk(keys: int, budget: int = 1 << 14) -> int:
    """How many queries fit a budget of scores per head."""
    return max(16, budget // max(keys, 1))


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """The same by torch's fused kernel."""
    options: dict[str, Any] = {"dropout_p": call.dropout, "scale": call.scale}
    square = q.shape[2] == k.shape[2]
    if call.plain and square:
        options["is_causal"] = True
    else:
        mask = causal_mask(call.q_index, call.k_index, call.window, call.sink_tokens, call.within)
        everything = slice(0, q.shape[2])
        mask = restrict(mask, call.segments, call.padding, everything, call.q_index, call.k_index)
        options["attn_mask"] = mask
    try:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
    except TypeError:  # torch before 2.5
        repeats = q.shape[1] // k.shape[1]
        return F.scaled_dot_product_attention(q, repeat_kv(k, repeats), repeat_kv(v, repeats), **options)


def attend(q: Tensor, k: Tensor, v: Tensor, call: Call, path: str) -> Tensor:
    """Attention by the path that fits."""
    if choose_path(path, call) == "sdpa":
        return sdpa_attention(q, k, v, call)
    return eager_attention(q, k, v, call)
