"""A scalar is read from the device for every token and group: the chosen blocks are turned into Python ranges."""

import torch

from tests.gallery.hosts.three_branch import BLOCK, SparseAttention, SparseLM

MODULE = "layer.attn"
CODES = {"HNG201", "PRF101"}


class RangesInPython(SparseAttention):
    def selected(self, q, x, importance):
        B, S, G, _, d = q.shape
        chosen = self.choose(importance.detach(), S)
        k, v = self.kv("selected", x)
        rows = []
        for b in range(B):
            for t in range(S):
                groups = []
                for g in range(G):
                    index = []
                    for j in range(chosen.shape[-1]):
                        if chosen[b, g, t, j].item():  # here
                            index.extend(range(j * BLOCK, min(j * BLOCK + BLOCK, t + 1)))
                    keys, values = k[b, index, g], v[b, index, g]
                    w = torch.softmax(q[b, t, g] @ keys.T / d**0.5, dim=-1)
                    groups.append(w @ values)
                rows.append(torch.stack(groups))
        return torch.stack(rows).view(B, S, G, -1, d)


def make():
    return SparseLM(attention=RangesInPython)
