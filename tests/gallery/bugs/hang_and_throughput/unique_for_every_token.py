"""Blocks are chosen by a sort and a `unique` for each token in turn, in the scorer."""

import torch

from tests.gallery.hosts.three_branch import BLOCK, CHOSEN, SparseAttention, SparseLM

MODULE = "layer.attn"
CODES = {"PRF101", "HNG201"}


class PerTokenScorer(SparseAttention):
    def choose(self, importance, S):
        picked = torch.zeros_like(importance, dtype=torch.bool)
        for b in range(importance.shape[0]):
            for g in range(importance.shape[1]):
                for t in range(S):
                    own = t // BLOCK
                    best = importance[b, g, t, : own + 1].argsort(descending=True, stable=True)
                    forced = torch.tensor([0, own])
                    others = best[(best != 0) & (best != own)]  # here
                    blocks = torch.unique(torch.cat([forced, others[: CHOSEN - len({0, own})]]))  # here
                    picked[b, g, t, blocks] = True
        return picked


def make():
    return SparseLM(attention=PerTokenScorer)
