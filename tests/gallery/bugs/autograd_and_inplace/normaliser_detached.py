"""The norm's gradient leaves out how its own statistics move: they are computed under no_grad."""

import torch
from torch import nn

from tests.gallery.hosts.gpt import GPT

MODULE = ("h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "h.1.ln_2", "ln_f")
CODES = {"GRD101"}


class CheapNorm(nn.Module):
    def __init__(self, ndim):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(ndim)), nn.Parameter(torch.zeros(ndim))

    @torch.no_grad()  # here
    def statistics(self, x):
        return x.mean(-1, keepdim=True), x.std(-1, keepdim=True, unbiased=False)

    def forward(self, x):
        mu, sigma = self.statistics(x)
        return (x - mu) / (sigma + 1e-5) * self.weight + self.bias


def make():
    return GPT(norm=CheapNorm)
