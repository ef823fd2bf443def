"""A low-rank adapter on frozen weights: one factor starts at zero, the other does not."""

import torch
from torch import nn

from tests.gallery.hosts.llama import Llama


class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def make():
    model = Llama().requires_grad_(False)
    for layer in model.layers:
        layer.attn.wq, layer.attn.wv = LoRA(layer.attn.wq), LoRA(layer.attn.wv)
    return model
