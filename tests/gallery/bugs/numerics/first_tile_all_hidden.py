"""NaN beyond 64 tokens: tiles are visited from the last one, where a row sees nothing, and -inf is taken from -inf."""

import torch

from tests.gallery.hosts.tiled_block import AttentionBlock, TiledAttention

MODULE = "attention"
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class FromTheEnd(TiledAttention):
    def key_tiles(self, last_row):
        return reversed(range(0, last_row + 1 + self.tile, self.tile))

    def fold(self, running, s, v):
        if s.shape[-1] == 0:
            return running
        peak, total, acc = running
        higher = torch.maximum(peak, s.amax(-1, keepdim=True))
        p = torch.exp(s - higher)  # here
        shrink = torch.exp(peak - higher)  # here
        return higher, total * shrink + p.sum(-1, keepdim=True), acc * shrink + p @ v


def make():
    return AttentionBlock(attention=FromTheEnd)
