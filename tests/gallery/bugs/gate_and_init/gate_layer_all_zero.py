"""Every gate is one half whatever the input: the gate's last layer starts with weight and bias zero."""

from torch import nn

from tests.gallery.hosts.three_branch import BranchGate, SparseLM, subject

MODULE = ("layer.attn.gate", "layer.attn.gate.out")
CODES = {"GAT101"}


class ZeroGate(BranchGate):
    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # here


def make():
    return subject(lambda: SparseLM(gate=ZeroGate), __name__)
