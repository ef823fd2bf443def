"""No biases, and norms without parameters."""

import torch.nn.functional as F
from torch import nn


class Bare(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.dim = dim
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(F.layer_norm(x, x.shape[-1:])).unsqueeze(1).chunk(3, dim=-1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))


def make():
    return Bare()
