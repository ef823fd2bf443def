"""Memory grows with every step: an auxiliary loss is kept in a list, and its whole graph with it."""

from tests.gallery.hosts.three_branch import BranchGate, SparseLM

MODULE = ("layer.attn.gate",)
CODES = {"PRF301"}


class Balanced(BranchGate):
    def __init__(self):
        super().__init__()
        self.balance_losses = []

    def forward(self, x):
        gates = super().forward(x)
        self.balance_losses.append((gates.mean((0, 1)) - 0.5).square().sum())  # here
        return gates


def make():
    return SparseLM(gate=Balanced)
