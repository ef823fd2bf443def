"""Functions that are right: torch's own, a blocked online softmax, one with a backward of its own."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from nsa import nsa_attention


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Tensor:
    """Dense attention as flash_attn_func is called."""
    scores, seen = _scores(q, k, softmax_scale, causal, window_size, softcap)
    return _mixed(scores, seen, v)


def _seen(queries: int, keys: int, causal: bool, window: tuple[int, int]) -> Tensor:
    own = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    seen &= (key <= own) if causal else True
    seen &= (key >= own - window[0]) if window[0] >= 0 else True
    return seen & ((key <= own + window[1]) if window[1] >= 0 else torch.tensor(True))


def _scores(
    q: Tensor, k: Tensor, scale: float | None, causal: bool, window: tuple[int, int], softcap: float
) -> tuple[Tensor, Tensor]:
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k).float() * (scale or q.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    return scores, _seen(q.shape[1], k.shape[1], causal, window)


def _mixed(scores: Tensor, seen: Tensor, v: Tensor) -> Tensor:
    v = v.repeat_interleave(scores.shape[1] // v.shape[2], 2)
    weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1) * seen.any(-1, keepdim=True)
    return torch.einsum("bhij,bjhd->bihd", weights.to(v.dtype), v)


def online(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """Blocked, with a running maximum and sum."""
    size, block = scale or q.shape[-1] ** -0.5, 32
    total = torch.zeros_like(q[..., :1], dtype=torch.float32)
    peak = torch.full_like(total, -1e30)
    mixed = torch.zeros(*q.shape[:-1], v.shape[-1])
    own = torch.arange(q.shape[2])[:, None]
    for start in range(0, k.shape[2], block):
        part = slice(start, min(k.shape[2], start + block))
        scores = (q @ k[:, :, part].mT).float() * size
        if is_causal:
            scores = scores.masked_fill(torch.arange(part.start, part.stop) > own, -1e30)
        higher = torch.maximum(peak, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - higher) * (scores > -1e29)
        factor = torch.exp(peak - higher)
        total = total * factor + weights.sum(-1, keepdim=True)
        mixed = mixed * factor + weights @ v[:, :, part].float()
        peak = higher
    return (mixed / total).to(q.dtype)


class _WithBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> Tensor:
        scores = (q @ k.mT).float() * scale
        if is_causal:
            later = torch.arange(k.shape[2]) > torch.arange(q.shape[2])[:, None]
            scores = scores.masked_fill(later, -torch.inf)
        weights = scores.softmax(-1)
        out = (weights.to(v.dtype) @ v).to(q.dtype)
        ctx.save_for_backward(q, k, v, weights)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        dout = gradients[0].float()
        dv = weights.mT @ dout
        change = dout @ v.float().mT
        change = weights * (change - (change * weights).sum(-1, keepdim=True)) * ctx.scale
        return (change @ k.float()).to(q.dtype), (change.mT @ q.float()).to(k.dtype), dv.to(v.dtype), None, None


def with_backward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """With a backward written by hand."""
    out: Tensor = _WithBackward.apply(q, k, v, is_causal, scale or q.shape[-1] ** -0.5)
    return out


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """One sequence after the other."""
    assert (max_seqlen_q, max_seqlen_k) == (int(cu_seqlens_q.diff().max()), int(cu_seqlens_k.diff().max()))
    parts = [
        (q[a:b][None], k[c:d][None], v[c:d][None])
        for a, b, c, d in zip(
            cu_seqlens_q.tolist(),
            cu_seqlens_q.tolist()[1:],
            cu_seqlens_k.tolist(),
            cu_seqlens_k.tolist()[1:],
            strict=False,
        )
    ]
    return torch.cat(
        [flash(*part, softmax_scale=softmax_scale, causal=causal, window_size=window_size)[0] for part in parts]
    )


def kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: None = None,
    v: None = None,
    cache_seqlens: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Row by row, of the keys that its cache holds."""
    assert cache_seqlens is not None
    return torch.cat(
        [
            flash(
                q[i : i + 1], k_cache[i : i + 1, :n], v_cache[i : i + 1, :n], softmax_scale=softmax_scale, causal=causal
            )
            for i, n in enumerate(cache_seqlens.tolist())
        ]
    )


def eager(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """As transformers' eager attention is written."""
    groups = module.num_key_value_groups
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.mT * scaling
    scores = scores if attention_mask is None else scores + attention_mask
    if (sinks := kwargs.get("s_aux")) is not None:
        sink = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, sink], -1).softmax(-1, dtype=torch.float32)[..., :-1].to(query.dtype)
    else:
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def sparse(
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
    """Selected blocks and a window, each as dense attention under a mask."""
    ratio, key = q.shape[2] // k.shape[2], torch.arange(k.shape[1])
    slots = torch.where(torch.arange(block_indices.shape[-1]) < block_counts[..., None], block_indices, -1)
    own = torch.arange(q.shape[1])[:, None]
    chosen = (slots[..., None, :] == (key // block_size)[:, None]).any(-1).transpose(1, 2).repeat_interleave(ratio, 1)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(ratio, 2)).float() * (scale or q.shape[-1] ** -0.5)
    selected = _mixed(scores, chosen & (key <= own), v)
    sliding = _mixed(scores, (key <= own) & (key > own - window_size), v)
    return selected * g_slc[..., None] + sliding * g_swa[..., None]


HEALTHY: dict[str, tuple[Any, str, str]] = {
    "sdpa causal": (scaled_dot_product_attention, "sdpa", "causal"),
    "sdpa full": (scaled_dot_product_attention, "sdpa", "full"),
    "sdpa gqa scale": (scaled_dot_product_attention, "sdpa", "causal,gqa=4,scale=0.2"),
    "sdpa mask": (scaled_dot_product_attention, "sdpa", "mask,gqa=2"),
    "sdpa window": (scaled_dot_product_attention, "sdpa", "causal,window=20"),
    "sdpa alibi": (scaled_dot_product_attention, "sdpa", "causal,alibi"),
    "flash": (flash, "flash", "causal,window=33,softcap=30,gqa=2"),
    "flash bidirectional window": (flash, "flash", "window=7:3"),
    "online": (online, "sdpa", "causal,square"),
    "with backward": (with_backward, "sdpa", "causal"),
    "varlen": (varlen, "flash_varlen", "causal,gqa=2,window=40"),
    "kvcache": (kvcache, "flash_kvcache", "causal"),
    "flex causal": (flex_attention, "flex", "causal,gqa=2"),
    "flex softcap alibi": (flex_attention, "flex", "window=12:4,softcap=20,alibi"),
    "hf sinks": (eager, "hf", "causal,gqa=2,sinks"),
    "sparse": (sparse, "nsa", "topk=3,block=16,window=20,gqa=4"),
    "native": (nsa_attention, "native", "topk=4,block=16,window=24,gqa=2"),
}
