"""Large inputs overflow: softmax is written out as exp over sum of exp and nothing is subtracted first."""

import torch
from torch import nn

from tests.gallery.hosts.tiled_block import AttentionBlock, TiledAttention

MODULE = "attention"
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class Plain(TiledAttention):
    def attention(self, q, k, v):
        at = torch.arange(q.shape[2], device=q.device)
        weights = self.tile_scores(q, k, at, at).exp()  # here
        return weights @ v / weights.sum(-1, keepdim=True)


def make():
    return AttentionBlock(attention=Plain, norm=nn.Identity)
