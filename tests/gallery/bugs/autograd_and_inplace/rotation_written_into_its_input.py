"""Backward raises: rotary embedding with learned frequencies overwrites the half it still needs."""

import torch
from torch import nn

from tests.gallery.hosts.llama import Attention, Llama

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"GRD401", "FWD101"}


class LearnedRope(Attention):
    def __init__(self, args):
        super().__init__(args)
        half = self.head_dim // 2
        self.freqs = nn.Parameter(args.rope_base ** (-torch.arange(half) / half))

    def rope(self, x, positions):
        angle = positions[:, None, None] * self.freqs
        first, second = x[..., : self.head_dim // 2], x[..., self.head_dim // 2 :]
        old = first.clone()
        first.mul_(angle.cos()).sub_(second * angle.sin())  # here
        second.mul_(angle.cos()).add_(old * angle.sin())  # here
        return x


def make():
    return Llama(attention=LearnedRope)
