"""A model kept in float16, whose norms compute in float32."""

import torch
from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer


class WideNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def make():
    return ConvMixer(norm=WideNorm).half()
