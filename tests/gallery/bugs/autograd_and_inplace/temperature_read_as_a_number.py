"""The learned temperature never learns: it is read with .item(); in the attention."""

import torch
from torch import nn

from tests.gallery.hosts.tiled_block import AttentionBlock, TiledAttention

MODULE = "attention"
CODES = {"GRD201", "GRD101"}


class LearnedTemperature(TiledAttention):
    def __init__(self, dim):
        super().__init__(dim)
        self.logit_scale = nn.Parameter(torch.tensor(0.3))

    def attention(self, q, k, v):
        temperature = self.logit_scale.exp().item()  # here
        return super().attention(q * temperature, k, v)


def make():
    return AttentionBlock(attention=LearnedTemperature)
