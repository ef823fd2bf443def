"""Every gate is exactly one and cannot learn: a bias of 30 puts the sigmoid where it is flat."""

from torch import nn

from tests.gallery.hosts.three_branch import BranchGate, SparseLM, subject

MODULE = ("layer.attn.gate", "layer.attn.gate.out", "layer.attn.gate.hidden")
CODES = {"GAT103", "GRD202"}


class WideOpen(BranchGate):
    def __init__(self):
        super().__init__()
        nn.init.constant_(self.out.bias, 30.0)  # here


def make():
    return subject(lambda: SparseLM(gate=WideOpen), __name__)
