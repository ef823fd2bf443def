"""The gate never learns: it is a comparison, through which no gradient flows."""

from tests.gallery.hosts.three_branch import HEADS, BranchGate, SparseLM

MODULE = ("layer.attn.gate", "layer.attn.gate.hidden", "layer.attn.gate.out")
CODES = {"GRD201", "GRD202", "GAT105"}


class Switch(BranchGate):
    def forward(self, x):
        logits = self.out(self.hidden(x).relu())
        return (logits > 0).to(x.dtype).view(*x.shape[:2], HEADS, 3)  # here


def make():
    return SparseLM(gate=Switch)
