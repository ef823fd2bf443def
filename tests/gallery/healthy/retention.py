"""Attention without softmax, whose weights decay with distance; a group norm per head and token."""

import torch
from torch import nn


class Retention(nn.Module):
    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.dim, self.heads = dim, heads
        self.qkvg = nn.Linear(dim, 4 * dim, bias=False)
        self.norm = nn.LayerNorm(dim // heads, elementwise_affine=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.register_buffer("gamma", 1 - 2.0 ** (-4 - torch.arange(heads, dtype=torch.float32)))

    def forward(self, x):
        S = x.shape[1]
        q, k, v, g = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkvg(x).chunk(4, -1))
        lag = torch.arange(S, device=x.device)[:, None] - torch.arange(S, device=x.device)
        decay = torch.where(lag >= 0, self.gamma[:, None, None] ** lag.clamp(min=0), 0.0)
        y = (q @ k.mT * decay.to(x.dtype)) @ v
        return self.out((torch.nn.functional.silu(g) * self.norm(y)).transpose(1, 2).flatten(2))


def make():
    return Retention()
