"""One layer of `nsa` at a small configuration, with all that its adapter offers: [B, S, 32] -> [B, S, 32]."""

from dataclasses import replace

import torch

from nsa.config import NSAConfig
from nsa.nn import NSAttention
from nsa_doctor.adapters.nsa_layer import layer_subject

# top

CONFIG = NSAConfig(dim=32, n_heads=4, n_kv_groups=2, d_k=8, d_v=8, l=8, d=4, l_sel=16, n_sel=4, w=48, phi="mlp")


class SparseAttention(NSAttention):
    # mixer: members

    def forward(self, x, cache=None, cu_seqlens=None, slots=None):
        past = 0 if cache is None else cache.length  # noqa: F841, a fault may ask
        # mixer: start
        y = super().forward(x, cache, cu_seqlens, slots)
        # mixer: end
        return y


def build(seed):
    torch.manual_seed(seed)
    return SparseAttention(CONFIG)


def make():
    subject = layer_subject(CONFIG)
    return replace(subject, name=f"{__name__}:make", build=build, packages=("nsa", __name__))
