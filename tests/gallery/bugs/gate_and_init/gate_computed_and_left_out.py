"""The gate is computed and has no say: the branches are averaged as they are."""

import torch

from tests.gallery.hosts.three_branch import SparseAttention, SparseLM

MODULE = ("layer.attn", "layer.attn.gate", "layer.attn.gate.hidden", "layer.attn.gate.out")
CODES = {"GRD201"}


class Average(SparseAttention):
    def combine(self, branches, gates):
        return torch.stack(list(branches)).mean(0)  # here


def make():
    return SparseLM(attention=Average)
