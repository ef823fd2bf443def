"""A dense decoder of the Llama kind: token ids -> logits, grouped queries, rotary positions, a cache for decoding."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.subject.contract import Subject


@dataclass
class Args:
    vocab_size: int = 61
    dim: int = 32
    n_heads: int = 4
    n_kv_heads: int = 2
    n_layers: int = 2
    hidden: int = 64
    rope_base: float = 10000.0


class KVCache:
    """Keys and values of the tokens so far, [B, T, G, D]."""

    def __init__(self):
        self.k = self.v = None

    def __len__(self):
        return 0 if self.k is None else self.k.shape[1]

    def update(self, k, v):
        self.k = k if self.k is None else torch.cat([self.k, k], dim=1)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=1)
        return self.k, self.v


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, args: Args):
        super().__init__()
        self.n_heads, self.n_kv = args.n_heads, args.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.base = args.rope_base
        self.wq = nn.Linear(args.dim, self.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, self.n_kv * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, self.n_kv * self.head_dim, bias=False)
        self.wo = nn.Linear(self.n_heads * self.head_dim, args.dim, bias=False)

    def rope(self, x, positions):
        """Rotates pairs (first half, second half) of x [B, T, H, D]."""
        half = self.head_dim // 2
        wide = torch.promote_types(x.dtype, torch.float32)
        freqs = self.base ** (-torch.arange(half, dtype=wide, device=x.device) / half)
        angles = positions.to(wide)[:, None] * freqs
        cos, sin = angles.cos()[None, :, None].to(x.dtype), angles.sin()[None, :, None].to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def mask(self, T, S, device):
        """True where query i (the last T of S) may look."""
        return torch.ones(T, S, dtype=torch.bool, device=device).tril(diagonal=S - T)

    def expand_kv(self, kv):
        return kv.repeat_interleave(self.n_heads // self.n_kv, dim=2)

    def attend(self, q, k, v, mask):
        scores = torch.einsum("bthd,bshd->bhts", q, k) * self.head_dim**-0.5
        probs = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return torch.einsum("bhts,bshd->bthd", probs, v)

    def merge(self, o):
        return o.flatten(2)

    def positions(self, T, past, device):
        return torch.arange(past, past + T, device=device)

    def forward(self, x, cache=None):
        B, T, _ = x.shape
        past = 0 if cache is None else len(cache)
        q = self.wq(x).view(B, T, self.n_heads, self.head_dim)
        k = self.wk(x).view(B, T, self.n_kv, self.head_dim)
        v = self.wv(x).view(B, T, self.n_kv, self.head_dim)
        pos = self.positions(T, past, x.device)
        q, k = self.rope(q, pos), self.rope(k, pos)
        if cache is not None:
            k, v = cache.update(k, v)
        o = self.attend(q, self.expand_kv(k), self.expand_kv(v), self.mask(T, k.shape[1], x.device))
        return self.wo(self.merge(o))


class SwiGLU(nn.Module):
    def __init__(self, args: Args):
        super().__init__()
        self.w1 = nn.Linear(args.dim, args.hidden, bias=False)
        self.w2 = nn.Linear(args.hidden, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, args.hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, args: Args, attention=Attention, mlp=SwiGLU, norm=RMSNorm):
        super().__init__()
        self.attn_norm, self.mlp_norm = norm(args.dim), norm(args.dim)
        self.attn, self.mlp = attention(args), mlp(args)

    def forward(self, x, cache=None):
        x = x + self.attn(self.attn_norm(x), cache)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, attention=Attention, mlp=SwiGLU, norm=RMSNorm, block=Block, **changes: Any):
        super().__init__()
        self.args = args = Args(**changes)
        self.vocab_size = args.vocab_size
        self.embed = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleList([block(args, attention, mlp, norm) for _ in range(args.n_layers)])
        self.norm = norm(args.dim)
        self.head = nn.Linear(args.dim, args.vocab_size, bias=False)

    def features(self, ids, caches=None):
        x = self.embed(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, None if caches is None else caches[i])
        return self.norm(x)

    def forward(self, ids, caches=None):
        return self.head(self.features(ids, caches))


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = next_token_loss(model, ids)
    loss.backward()
    optimizer.step()
    return loss.detach()


def subject(make, name: str, cache=KVCache, **seams: Any) -> Subject:
    """The model with its cache; further seams are added as given. The vocabulary is that of the built model."""

    def build(seed):
        torch.manual_seed(seed)
        return make()

    def prefill(model, ids):
        caches = [cache() for _ in model.layers]
        return model(ids, caches), caches

    def step(model, ids, caches):
        return model(ids, caches), caches

    offered = {"width": Args.vocab_size, "prefill": prefill, "step": step, "packages": ("tests",), "max_length": 512}
    return Subject(
        name=name,
        build=build,
        forward=lambda model, ids: model(ids),
        input="tokens",
        **{**offered, **seams},
    )
