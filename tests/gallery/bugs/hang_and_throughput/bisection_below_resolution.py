"""Never returns for large inputs: the threshold of sparse attention is bisected to finer than float32 can tell."""

import torch
from torch import nn

from tests.gallery.hosts.tiled_block import AttentionBlock, TiledAttention

MODULE = "attention"
CODES = {"HNG101"}


def sparsemax(scores):
    """Weights max(s - tau, 0) that add up to one."""
    with torch.no_grad():
        high = scores.amax(-1, keepdim=True)
        low = high - 1
        while (high - low).max() > 1e-6:  # here
            tau = (low + high) / 2
            too_much = (scores - tau).clamp(min=0).sum(-1, keepdim=True) > 1
            low, high = torch.where(too_much, tau, low), torch.where(too_much, high, tau)  # here
    kept = scores > low
    tau = (torch.where(kept, scores, 0).sum(-1, keepdim=True) - 1) / kept.sum(-1, keepdim=True)
    return (scores - tau).clamp(min=0)


class SparseTiles(TiledAttention):
    def attention(self, q, k, v):
        at = torch.arange(q.shape[2], device=q.device)
        scores = self.tile_scores(q, k, at, at).clamp(min=-1e4)
        scores = scores.masked_fill(at[:, None] < at, -1e4)
        return sparsemax(scores) @ v


def make():
    return AttentionBlock(attention=SparseTiles, norm=nn.Identity)
