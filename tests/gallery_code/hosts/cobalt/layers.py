"""Small parts: norm, feed-forward, rotary positions, the gate, and attention over what a mask shows."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def wide_dtype(x: Tensor) -> torch.dtype:
    """float32, or float64 where that is what comes in."""
    return torch.promote_types(x.dtype, torch.float32)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(wide_dtype(x))
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


class SwiGLU(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)


def rope_tables(positions: Tensor, head_dim: int, base: float, scale: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [T, head_dim / 2] of positions [T], at least in float32."""
    dtype = wide_dtype(like)
    exponent = torch.arange(0, head_dim, 2, device=like.device, dtype=dtype) / head_dim
    frequency = base**-exponent
    angle = (positions.to(dtype) / scale)[:, None] * frequency
    return angle.cos(), angle.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, T, heads, head_dim]; channel i is paired with channel i + head_dim / 2."""
    a, b = x.to(cos.dtype).chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class BranchGate(nn.Module):
    """Gates of the three branches, one triple for each group: a sigmoid of an MLP on the group's mean query."""

    def __init__(self, head_dim: int, hidden: int, temperature: float = 1.0):
        super().__init__()
        self.temperature = temperature
        self.inner = nn.Linear(head_dim, hidden)
        self.outer = nn.Linear(hidden, 3)

    def forward(self, q: Tensor, groups: int) -> Tensor:
        """q [B, S, H, D], not rotated -> gates [B, S, G, 3]."""
        pooled = q.unflatten(2, (groups, -1)).mean(3)
        logits = self.outer(F.silu(self.inner(pooled)))
        return torch.sigmoid(logits / self.temperature)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension of what the mask shows; rows that are shown nothing are zero."""
    wide = scores.to(wide_dtype(scores)).masked_fill(~mask, -torch.inf)
    peak = wide.amax(-1, keepdim=True).clamp(min=torch.finfo(wide.dtype).min).detach()
    weight = torch.exp(wide - peak)
    return weight / weight.sum(-1, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [..., S, D], k and v [..., T, D], mask [..., S, T] of what is seen."""
    dtype = wide_dtype(q)
    scores = q.to(dtype) @ k.to(dtype).mT * q.shape[-1] ** -0.5
    return (masked_softmax(scores, mask) @ v.to(dtype)).to(q.dtype)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The same by torch's kernel, for q [B, H, S, D] with k and v [B, H, T, D]."""
    seen = mask.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~seen)
    return out.masked_fill(~seen, 0.0)


def by_group(q: Tensor, groups: int) -> Tensor:
    """[B, S, H, D] -> [B, G, H / G, S, D]."""
    return q.unflatten(2, (groups, -1)).permute(0, 2, 3, 1, 4)


def from_group(out: Tensor) -> Tensor:
    """[B, G, H / G, S, D] -> [B, S, H, D]."""
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


def per_head(kv: Tensor, heads: int) -> Tensor:
    """[B, T, G, D] -> [B, H, T, D], each group's head repeated for its queries."""
    return kv.transpose(1, 2).repeat_interleave(heads // kv.shape[2], dim=1)
