"""0/0 is computed for the rows that see nothing and replaced before anything differentiable touches it."""

import torch

from tests.gallery.hosts.three_branch import SparseAttention, SparseLM


class CountsFirst(SparseAttention):
    def importance(self, weights, S):
        with torch.no_grad():
            share = weights / weights.sum(-1, keepdim=True)  # NaN where no block is complete
            share = torch.where(share.isnan(), torch.zeros_like(share), share)
        return super().importance(share, S)


def make():
    return SparseLM(attention=CountsFirst)
