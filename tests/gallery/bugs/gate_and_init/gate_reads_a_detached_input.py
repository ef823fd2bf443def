"""Layers below never hear of the gate: its input is detached."""

from tests.gallery.hosts.three_branch import BranchGate, SparseLM

MODULE = ("layer.attn.gate", "layer.attn")
CODES = {"GRD101"}


class Aside(BranchGate):
    def forward(self, x):
        return super().forward(x.detach())  # here


def make():
    return SparseLM(gate=Aside)
