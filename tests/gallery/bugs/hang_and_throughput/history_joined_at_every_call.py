"""Each call is slower than the one before: the activations of all past calls are kept and joined for a statistic."""

import torch

from tests.gallery.hosts.conv_mixer import ConvMixer, GatedConv

MODULE = ("layers.0.mixer", "layers.1.mixer")
CODES = {"PRF302", "PRF301"}


class Monitored(GatedConv):
    def __init__(self, dim):
        super().__init__(dim)
        self.history = []
        self.peak = 0.0

    def forward(self, x):
        y = super().forward(x)
        self.history.append(y.detach().flatten(0, 1))  # here
        self.peak = torch.cat(self.history).abs().amax()
        return y


def make():
    return ConvMixer(mixer=Monitored)
