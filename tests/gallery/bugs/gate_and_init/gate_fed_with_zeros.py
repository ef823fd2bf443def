"""The gate is blind: it is given an empty buffer of the input's shape in place of the input."""

import torch

from tests.gallery.hosts.three_branch import BranchGate, SparseLM, subject

MODULE = ("layer.attn.gate", "layer.attn.gate.hidden", "layer.attn.gate.out")
CODES = {"GAT102", "GRD202"}


class Blind(BranchGate):
    def forward(self, x):
        pooled = torch.zeros_like(x)  # here
        return super().forward(pooled)


def make():
    return subject(lambda: SparseLM(gate=Blind), __name__)
