"""A steady input makes NaN: the variance so far is E[x2] - E[x]2, which rounding makes negative; in the norms."""

import torch
from torch import nn

from tests.gallery.hosts.recurrence import RecurrentStack

MODULE = ("blocks.0.norm", "blocks.1.norm")
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class StreamingNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        n = torch.arange(1, x.shape[1] + 1, device=x.device).to(x.dtype)[:, None]
        mean, square = x.cumsum(1) / n, (x * x).cumsum(1) / n
        return self.scale * (x - mean) / torch.sqrt(square - mean**2 + 1e-5)  # here


def make():
    return RecurrentStack(norm=StreamingNorm)
