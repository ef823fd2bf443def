"""Random features that are never trained stand for the kernel of attention; kept as a buffer."""

import torch
from torch import nn


class Performer(nn.Module):
    def __init__(self, dim=16, features=32):
        super().__init__()
        self.dim = dim
        self.register_buffer("omega", torch.randn(dim, features) / dim**0.25)
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)

    def phi(self, x):
        x = x / x.shape[-1] ** 0.25
        return torch.exp((x @ self.omega - x.square().sum(-1, keepdim=True) / 2).clamp(max=10)) + 1e-4

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = torch.tril(self.phi(q) @ self.phi(k).mT)
        return x + scores / scores.sum(-1, keepdim=True) @ v


def make():
    return Performer()
