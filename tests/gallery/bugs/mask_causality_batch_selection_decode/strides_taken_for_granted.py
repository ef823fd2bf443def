"""A transposed or expanded input gives another result: the kernel's wrapper reads memory as if it were contiguous."""

import torch

from tests.gallery.hosts.tiled_block import AttentionBlock, TiledAttention

CODES = {"FWD205"}


class Raw(AttentionBlock):
    def forward(self, x):
        B, S, C = x.shape
        rows = torch.as_strided(x, (B * S, C), (C, 1))  # here
        y = self.attention(self.norm(rows).view(B, S, C))
        return rows.view(B, S, C) + y


MODULE = ""


def make():
    return Raw(attention=TiledAttention)
