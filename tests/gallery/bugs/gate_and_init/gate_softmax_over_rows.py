"""The rows of a batch compete for one unit of weight: softmax(dim=0) was written for unbatched input."""

from tests.gallery.hosts.three_branch import HEADS, BranchGate, SparseLM

MODULE = ("layer.attn.gate",)
CODES = {"FWD203", "FWD204"}


class RowSoftmax(BranchGate):
    def forward(self, x):
        h = self.hidden(x).relu()
        return self.out(h).view(*x.shape[:-1], HEADS, 3).softmax(0)  # here


def make():
    return SparseLM(gate=RowSoftmax)
