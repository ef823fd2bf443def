"""The low-rank adapter never learns: both of its factors start at zero, so each zeroes the other's gradient."""

import torch
from torch import nn

from tests.gallery.hosts.llama import Attention, Llama

MODULE = tuple(f"layers.{i}.attn.{name}" for i in range(2) for name in ("wq", "wv"))
CODES = {"GRD202"}


class LoRALinear(nn.Linear):
    def __init__(self, linear, rank=4):
        super().__init__(linear.in_features, linear.out_features, bias=False)
        self.lora_a = nn.Parameter(torch.zeros(rank, linear.in_features))
        self.lora_b = nn.Parameter(torch.zeros(linear.out_features, rank))  # here

    def forward(self, x):
        return super().forward(x) + x @ self.lora_a.T @ self.lora_b.T


class AdaptedAttention(Attention):
    def __init__(self, args):
        super().__init__(args)
        self.wq, self.wv = LoRALinear(self.wq), LoRALinear(self.wv)


def make():
    return Llama(attention=AdaptedAttention)
