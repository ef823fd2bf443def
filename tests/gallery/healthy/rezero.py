"""Each block's one residual weight is a parameter that starts at zero."""

import torch
from torch import nn

from tests.gallery.hosts.llama import Block, Llama


class ReZero(Block):
    def __init__(self, *args):
        super().__init__(*args)
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x, cache=None):
        x = x + self.alpha * self.attn(self.attn_norm(x), cache)
        return x + self.alpha * self.mlp(self.mlp_norm(x))


def make():
    return Llama(block=ReZero)
