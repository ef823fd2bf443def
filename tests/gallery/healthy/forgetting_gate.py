"""Scores get the sum of log forget gates between two tokens, by logsigmoid, which cannot underflow."""

import torch
import torch.nn.functional as F
from torch import nn


class ForgettingAttention(nn.Module):
    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.dim, self.heads = dim, heads
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.forget = nn.Linear(dim, 3 * dim), nn.Linear(dim, heads)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        kept = F.logsigmoid(self.forget(h)).transpose(1, 2).cumsum(-1)
        bias = (kept.unsqueeze(-1) - kept.unsqueeze(-2)).masked_fill(
            torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1), -torch.inf
        )
        return x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))


def make():
    return ForgettingAttention()
