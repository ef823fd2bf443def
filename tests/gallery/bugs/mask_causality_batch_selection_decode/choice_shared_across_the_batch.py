"""One choice of blocks serves all rows: importance is averaged over the batch 'to save a gather'."""

from tests.gallery.hosts.three_branch import SparseAttention, SparseLM

MODULE = "layer.attn"
CODES = {"FWD203", "FWD204"}


class SharedChoice(SparseAttention):
    def choose(self, importance, S):
        shared = importance.mean(dim=0, keepdim=True)  # here
        return super().choose(shared, S).expand(importance.shape)


def make():
    return SparseLM(attention=SharedChoice)
