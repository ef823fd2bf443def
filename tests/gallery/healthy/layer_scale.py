"""Every branch is multiplied by a learned vector that starts at 1e-6."""

import torch
from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer, MixerLayer


class Scaled(MixerLayer):
    def __init__(self, dim, **parts):
        super().__init__(dim, **parts)
        self.gamma1, self.gamma2 = (nn.Parameter(torch.full((dim,), 1e-6)) for _ in range(2))

    def forward(self, x):
        x = x + self.gamma1 * self.mixer(self.norm1(x))
        return x + self.gamma2 * self.mlp(self.norm2(x))


def make():
    return ConvMixer(layer=Scaled)
