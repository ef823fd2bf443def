"""Gates of all tokens compete for one unit of weight: the softmax runs over time, so later tokens count."""

from tests.gallery.hosts.three_branch import HEADS, BranchGate, SparseLM

MODULE = ("layer.attn.gate",)
CODES = {"FWD201", "FWD202"}


class TimeSoftmax(BranchGate):
    def forward(self, x):
        logits = self.out(self.hidden(x).relu())
        return logits.softmax(dim=1).unflatten(-1, (HEADS, 3))  # here


def make():
    return SparseLM(gate=TimeSoftmax)
