"""The compressed branch is lost: the second one is assigned where it should be added."""

from tests.gallery.hosts.three_branch import SparseAttention, SparseLM

MODULE = (
    "layer.attn",
    "layer.attn.to_kv.compressed",
    *(f"layer.attn.pool_{kv}{leaf}" for kv in "kv" for leaf in ("", ".mix")),
)
CODES = {"GRD201", "GAT104"}


class Assigned(SparseAttention):
    def combine(self, branches, gates):
        out = gates[..., 0, None] * branches[0]
        out = gates[..., 1, None] * branches[1]  # here
        out = out + gates[..., 2, None] * branches[2]
        return out


def make():
    return SparseLM(attention=Assigned)
