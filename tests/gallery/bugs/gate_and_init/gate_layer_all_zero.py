"""Every gate is one half whatever the input, and stays so: both of its layers start at zero."""

from torch import nn

from tests.gallery.hosts.three_branch import BranchGate, SparseLM, subject

MODULE = ("layer.attn.gate", "layer.attn.gate.hidden", "layer.attn.gate.out")
CODES = {"GAT101", "GRD202"}


class ZeroGate(BranchGate):
    def __init__(self):
        super().__init__()
        for layer in (self.hidden, self.out):
            nn.init.zeros_(layer.weight)  # here
            nn.init.zeros_(layer.bias)


def make():
    return subject(lambda: SparseLM(gate=ZeroGate), __name__)
