"""The whole mixer is dead: its ReLU gate starts with a bias of -50 and never opens."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer, GatedConv

MODULE = tuple(f"layers.{i}.mixer{leaf}" for i in range(2) for leaf in ("", ".in_proj", ".conv", ".out_proj"))
CODES = {"GRD202", "GAT103"}


class ShutGate(GatedConv):
    def __init__(self, dim):
        super().__init__(dim)
        self.threshold = nn.Parameter(torch.full((dim,), -50.0))

    def gate(self, g):
        return F.relu(g + self.threshold)  # here


def make():
    return ConvMixer(mixer=ShutGate)
