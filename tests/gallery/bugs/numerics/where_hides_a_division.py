"""Zeros at the input give a NaN gradient: `where` picks the safe side, yet the other side is differentiated too."""

import torch
from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer

MODULE = (*(f"layers.{i}.norm{j}" for i in range(2) for j in (1, 2)), "norm")
CODES = {"NAN103", "NAN104", "NAN105", "NAN102"}


class UnitNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return self.gain * torch.where(length > 1e-8, x / length, torch.zeros_like(x))  # here


def make():
    return ConvMixer(norm=UnitNorm)
