"""Attention is dead: its residual weight starts at zero and is a plain tensor, so it stays there."""

import torch

from tests.gallery.hosts.gpt import GPT, Block

MODULE = tuple(f"h.{i}{leaf}" for i in range(2) for leaf in ("", ".attn", ".attn.c_attn", ".attn.c_proj", ".ln_1"))
CODES = {"GRD202"}


class ReZeroBlock(Block):
    def __init__(self, **parts):
        super().__init__(**parts)
        self.resweight = torch.zeros(1)  # here

    def forward(self, x):
        x = x + self.resweight * self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def make():
    return GPT(block=ReZeroBlock)
