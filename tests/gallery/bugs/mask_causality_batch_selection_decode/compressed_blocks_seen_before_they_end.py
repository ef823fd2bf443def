"""A compressed block is visible from its first token on, so up to seven later tokens leak; in the attention."""

import torch

from tests.gallery.hosts.three_branch import STRIDE, SparseAttention, SparseLM

MODULE = "layer.attn"
CODES = {"FWD201", "FWD202"}


class Eager(SparseAttention):
    def complete(self, S, C, device):
        starts = STRIDE * torch.arange(C, device=device)
        return torch.arange(S, device=device).unsqueeze(1) >= starts  # here


def make():
    return SparseLM(attention=Eager)
