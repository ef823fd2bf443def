"""A float16 model drops large tokens: the sum of squares overflows in its norm, and 1/inf makes zeros of them."""

import torch
from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer

MODULE = (*(f"layers.{i}.norm{j}" for i in range(2) for j in (1, 2)), "norm")
CODES = {"FWD304", "NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class HalfNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        squares = (x * x).sum(-1, keepdim=True)  # here
        return x * torch.rsqrt(squares / x.shape[-1] + 1e-5) * self.weight  # here


def make():
    return ConvMixer(norm=HalfNorm).half()
