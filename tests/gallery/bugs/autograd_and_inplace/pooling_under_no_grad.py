"""The compressor is never trained: its forward still carries the decorator it had for inference."""

import torch

from tests.gallery.hosts.three_branch import Pool, SparseLM

MODULE = tuple(f"layer.attn.pool_{kv}{leaf}" for kv in "kv" for leaf in ("", ".mix"))
CODES = {"GRD201", "GRD101"}


class InferencePool(Pool):
    @torch.no_grad()  # here
    def forward(self, x):
        return self.mix(torch.tanh(self.blocks(x) + self.where).mean(-2))


def make():
    return SparseLM(pool=InferencePool)
