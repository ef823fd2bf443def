"""A decoder with grouped queries, rotary positions and a KV cache, offered through an adapter: ids -> logits."""

import torch
from torch import nn

from nsa_doctor import Adapter

# top

VOCAB, DIM, HEADS = 36, 32, 4


class Cache:
    """Keys and values of the tokens so far."""

    def __init__(self):
        self.k = self.v = None

    def add(self, k, v):
        self.k = k if self.k is None else torch.cat([self.k, k], dim=1)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=1)
        return self.k, self.v


def rotate(x, first):
    half = x.shape[-1] // 2
    at = torch.arange(first, first + x.shape[1], device=x.device, dtype=torch.float32)
    angles = at[:, None] * 10000.0 ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class GroupedAttention(nn.Module):
    # mixer: members

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM // 2, bias=False)
        self.v_proj, self.o_proj = nn.Linear(DIM, DIM // 2, bias=False), nn.Linear(DIM, DIM, bias=False)

    def forward(self, x, cache=None):
        past = 0 if cache is None or cache.k is None else cache.k.shape[1]
        # mixer: start
        q = rotate(self.q_proj(x).unflatten(2, (HEADS, -1)), past)
        k, v = (
            rotate(self.k_proj(x).unflatten(2, (HEADS // 2, -1)), past),
            self.v_proj(x).unflatten(2, (HEADS // 2, -1)),
        )
        if cache is not None:
            k, v = cache.add(k, v)
        k, v = k.repeat_interleave(2, dim=2), v.repeat_interleave(2, dim=2)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        seen = torch.ones(x.shape[1], k.shape[1], dtype=torch.bool, device=x.device).tril(past)
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
        y = self.o_proj(torch.einsum("bhts,bshd->bthd", weights, v).flatten(2))
        # mixer: end
        return y


class CachedModel(nn.Module):
    # model: members

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.norms = nn.ModuleList([nn.LayerNorm(DIM), nn.LayerNorm(DIM)])
        self.mixers = nn.ModuleList([GroupedAttention(), GroupedAttention()])
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, x, caches=(None, None)):
        # model: start
        hidden = self.embed(x)
        for norm, mixer, cache in zip(self.norms, self.mixers, caches, strict=True):
            hidden = hidden + mixer(norm(hidden), cache)
        y = self.head(hidden)
        # model: end
        return y


def prefill(model, x):
    caches = (Cache(), Cache())
    return model(x, caches), caches


def step(model, x, caches):
    return model(x, caches), caches


def make():
    return Adapter(
        make=CachedModel, input="tokens", width=VOCAB, max_length=1024, seams={"prefill": prefill, "step": step}
    )
