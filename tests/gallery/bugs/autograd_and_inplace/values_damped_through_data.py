"""The gates' gradient uses branches that were changed after the forward used them: `.data` is scaled in place."""

from tests.gallery.hosts.three_branch import SparseAttention, SparseLM

MODULE = "layer.attn"
CODES = {"GRD402", "GRD101"}


class Damped(SparseAttention):
    def combine(self, branches, gates):
        out = 0
        for branch, weight in zip(branches, gates.unbind(-1), strict=True):
            out = out + weight[..., None] * branch
            branch.data.mul_(0.5)  # here
        return out


def make():
    return SparseLM(attention=Damped)
