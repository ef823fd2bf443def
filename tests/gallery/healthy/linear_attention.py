"""Positive feature maps and cumulative sums in place of a softmax."""

import torch
import torch.nn.functional as F
from torch import nn


class LinearAttention(nn.Module):
    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.norm = nn.LayerNorm(dim)
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.einsum("bshd,bshe->bshde", k, v).cumsum(1)
        total = torch.einsum("bshd,bshd->bsh", q, k.cumsum(1))
        return x + self.out((torch.einsum("bshd,bshde->bshe", q, memory) / total[..., None]).flatten(2))


def make():
    return LinearAttention()
