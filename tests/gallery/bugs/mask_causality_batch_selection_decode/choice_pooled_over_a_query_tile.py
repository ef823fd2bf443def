"""Eight queries share one choice, made from their mean importance, which early ones may not know yet."""

import torch.nn.functional as F

from tests.gallery.hosts.three_branch import SparseAttention, SparseLM

MODULE = "layer.attn"
CODES = {"FWD201", "FWD202"}


class TiledChoice(SparseAttention):
    def choose(self, importance, S):
        tail = -S % 8
        tiles = F.pad(importance, (0, 0, 0, tail)).unflatten(2, (-1, 8))
        pooled = tiles.mean(3, keepdim=True).expand_as(tiles)  # here
        return super().choose(pooled.flatten(2, 3)[:, :, :S], S)


def make():
    return SparseLM(attention=TiledChoice)
