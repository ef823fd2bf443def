"""Zeros at the input make NaN: the norm divides by a root mean square without an epsilon."""

import torch
from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer

MODULE = (*(f"layers.{i}.norm{j}" for i in range(2) for j in (1, 2)), "norm")
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class ScaleNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.g * x / x.pow(2).mean(dim=-1, keepdim=True).sqrt()  # here


def make():
    return ConvMixer(norm=ScaleNorm)
