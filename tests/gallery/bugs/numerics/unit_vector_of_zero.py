"""Queries of length zero make NaN: QK-norm divides by the length as it is; in the attention."""

from torch import nn

from tests.gallery.hosts.tiled_block import AttentionBlock, TiledAttention

MODULE = "attention"
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class CosineAttention(TiledAttention):
    def __init__(self, dim):
        super().__init__(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)

    def attention(self, q, k, v):
        q, k = (t / t.norm(dim=-1, keepdim=True) * self.head_dim**0.5 for t in (q, k))  # here
        return super().attention(q, k, v)


def make():
    return AttentionBlock(attention=CosineAttention)
