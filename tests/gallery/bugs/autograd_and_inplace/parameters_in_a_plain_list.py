"""The taps of the convolution are not among the model's parameters: they are kept in a plain list."""

import torch
from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer, GatedConv

MODULE = ("layers.0.mixer.conv", "layers.1.mixer.conv")
CODES = {"GRD203"}


class TapList(nn.Module):
    def __init__(self, channels, kernel=4):
        super().__init__()
        self.taps = [nn.Parameter(torch.randn(channels) * 0.5) for _ in range(kernel)]  # here

    def forward(self, x):
        y = x * self.taps[0]
        for lag, tap in enumerate(self.taps[1:], start=1):
            y = y + torch.cat([torch.zeros_like(x[:, :lag]), x[:, :-lag]], dim=1)[:, : x.shape[1]] * tap
        return y


def make():
    return ConvMixer(mixer=lambda dim: GatedConv(dim, conv=TapList))
