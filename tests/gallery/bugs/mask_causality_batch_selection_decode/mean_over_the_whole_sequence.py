"""Features are centred by their mean over time, future included; in the layers' norms."""

import torch
from torch import nn

from tests.gallery.hosts.recurrence import RecurrentStack

MODULE = ("blocks.0.norm", "blocks.1.norm")
CODES = {"FWD201", "FWD202"}


class InstanceNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        centred = x - x.mean(dim=-2, keepdim=True)  # here
        return self.gain * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def make():
    return RecurrentStack(norm=InstanceNorm)
