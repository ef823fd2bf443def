"""Each token gets the mean of all tokens up to itself."""

import torch
from torch import nn


class Averaging(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.dim = dim
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device).unsqueeze(-1)
        return x + self.mlp(x.cumsum(1) / count)


def make():
    return Averaging()
