"""The first tokens have no complete block to see, and a softmax over nothing but -inf is NaN; in the attention."""

import torch

from tests.gallery.hosts.three_branch import SparseAttention, SparseLM

MODULE = "layer.attn"
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105", "NAN106"}


class Unguarded(SparseAttention):
    def attend(self, q, k, v, allowed):
        s = torch.einsum("bsghd,btgd->bghst", q, k) * self.d**-0.5
        s = s + torch.zeros_like(s).masked_fill_(~allowed, -torch.inf)
        p = torch.softmax(s, dim=-1)  # here
        return torch.einsum("bghst,btgd->bsghd", p, v), p.nan_to_num()


def make():
    return SparseLM(attention=Unguarded)
