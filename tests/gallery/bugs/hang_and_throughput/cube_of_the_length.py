"""Memory grows with the cube of the length: which keys are near is found by comparing all triples of positions."""

import torch

from tests.gallery.hosts.three_branch import WINDOW, SparseAttention, SparseLM, subject

MODULE = "layer.attn"
CODES = {"PRF201", "PRF202"}


class Triples(SparseAttention):
    def near(self, S, device):
        at = torch.arange(S, device=device)
        between = (at[None, :, None] < at[None, None, :]) & (at[None, None, :] <= at[:, None, None])  # here
        return self.causal(S, device) & (between.float().sum(-1) < WINDOW)


def make():
    return subject(lambda: SparseLM(attention=Triples), __name__, max_length=256)
