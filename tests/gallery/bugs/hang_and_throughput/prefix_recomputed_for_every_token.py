"""Each token's output is taken from a new pass over its whole prefix; the convolution is run S times."""

import torch

from tests.gallery.hosts.conv_mixer import CausalConv, ConvMixer, GatedConv

MODULE = ("layers.0.mixer.conv", "layers.1.mixer.conv")
CODES = {"PRF101", "PRF202"}


class Replays(CausalConv):
    def forward(self, x):
        steps = [super(Replays, self).forward(x[:, : t + 1])[:, -1:] for t in range(x.size(1))]  # here
        return torch.cat(steps, dim=1)


def make():
    return ConvMixer(mixer=lambda dim: GatedConv(dim, conv=Replays))
