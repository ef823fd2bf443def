"""The sliding branch is computed and thrown away: the selected one stands in the sum twice."""

from tests.gallery.hosts.three_branch import SparseAttention, SparseLM

MODULE = ("layer.attn", "layer.attn.to_kv.sliding")
CODES = {"GRD201", "GAT104"}


class Twice(SparseAttention):
    def combine(self, branches, gates):
        compressed, selected, _ = branches
        g0, g1, g2 = gates.split(1, dim=-1)
        return g0 * compressed + g1 * selected + g2 * selected  # here


def make():
    return SparseLM(attention=Twice)
