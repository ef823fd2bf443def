"""The model fades as it is used, in eval mode too: weight decay is done in the forward."""

import torch

from tests.gallery.hosts.tiled_block import AttentionBlock, TiledAttention

MODULE = ("attention", "attention.qkv", "attention.proj")
CODES = {"FWD206"}


class SelfDecaying(TiledAttention):
    decay = 1e-3

    def forward(self, x):
        with torch.no_grad():
            for linear in (self.qkv, self.proj):
                linear.weight.mul_(1 - self.decay)  # here
        return super().forward(x)


def make():
    return AttentionBlock(attention=SelfDecaying)
