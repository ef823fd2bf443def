"""The padding token gives NaN in float16: an epsilon of 1e-8 is zero there, and its embedding is zero too."""

import torch
from torch import nn

from tests.gallery.hosts.llama import Llama, RMSNorm

MODULE = (*(f"layers.{i}.{norm}_norm" for i in range(2) for norm in ("attn", "mlp")), "norm")
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class TinyEpsilon(RMSNorm):
    def forward(self, x):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return self.weight * (x / torch.sqrt(mean_square + 1e-8))  # here


def make():
    model = Llama(norm=TinyEpsilon)
    model.embed = nn.Embedding(model.vocab_size, model.args.dim, padding_idx=0)
    return model.half()
