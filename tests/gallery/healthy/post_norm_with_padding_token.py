"""Norms after each branch, embeddings scaled by the root of the width, and a padding token whose row is zero."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class PostNorm(nn.Module):
    def __init__(self, vocab_size=37, width=16):
        super().__init__()
        self.scale = math.sqrt(width)
        self.embed = nn.Embedding(vocab_size, width, padding_idx=0)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ff = nn.Sequential(nn.Linear(width, 48), nn.ReLU(inplace=True), nn.Linear(48, width))
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, ids):
        x = self.embed(ids) * self.scale
        q, k, v = (t.view(*x.shape[:2], 2, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.ln1(x + self.out(y.transpose(1, 2).reshape(x.shape)))
        x = self.ln2(x + self.ff(x))
        return torch.matmul(x, self.embed.weight.T)


def make():
    return PostNorm()
