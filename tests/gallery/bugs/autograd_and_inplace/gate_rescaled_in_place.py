"""Backward raises: the sigmoid's result is doubled in place after it has been used; in the mixer."""

import torch

from tests.gallery.hosts.conv_mixer import ConvMixer, GatedConv

MODULE = ("layers.0.mixer", "layers.1.mixer")
CODES = {"GRD401", "FWD101"}


class DoubledGate(GatedConv):
    def forward(self, x):
        u, g, v = torch.chunk(self.in_proj(x), 3, dim=-1)
        gate = g.sigmoid()
        mixed = gate * self.conv(u * v)
        return self.out_proj(mixed + gate.mul_(2.0))  # here


def make():
    return ConvMixer(mixer=DoubledGate)
