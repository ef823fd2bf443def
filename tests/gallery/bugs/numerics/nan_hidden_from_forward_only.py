"""Finite forward, NaN gradient: rows without a block are cleaned after the softmax that made them NaN."""

import torch

from tests.gallery.hosts.three_branch import SparseAttention, SparseLM

MODULE = "layer.attn"
CODES = {"NAN102", "NAN103", "NAN104", "NAN105", "NAN106"}


class Cleaned(SparseAttention):
    def attend(self, q, k, v, allowed):
        bias = torch.where(allowed, 0.0, -torch.inf).to(q.dtype)
        p = torch.softmax(torch.einsum("bsghd,btgd->bghst", q / self.d**0.5, k) + bias, -1)  # here
        p = torch.nan_to_num(p, nan=0.0)
        return torch.einsum("bghst,btgd->bsghd", p, v), p


def make():
    return SparseLM(attention=Cleaned)
