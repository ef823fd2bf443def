"""Large inputs overflow in float16: q times k is formed first and scaled after; in the attention."""

import torch
from torch import nn

from tests.gallery.hosts.tiled_block import AttentionBlock, TiledAttention

MODULE = "attention"
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class ScaleLast(TiledAttention):
    def __init__(self, dim):
        super().__init__(dim, heads=1)

    def tile_scores(self, q, k, rows, columns):
        lag = rows[:, None] - columns
        s = (q @ k.transpose(-1, -2)) / self.head_dim**0.5 - self.slopes.view(-1, 1, 1) * lag  # here
        return s.masked_fill(lag < 0, -torch.inf)


def make():
    return AttentionBlock(attention=ScaleLast, norm=nn.Identity, dim=128).half()
