"""The experts are not trained, saved or moved: they are kept in a plain list of modules."""

import torch
from torch import nn

from tests.gallery.hosts.gpt import GPT, N_EMBD

MODULE = ("h.0.mlp", "h.1.mlp")
CODES = {"GRD203"}


def expert():
    return nn.Sequential(nn.Linear(N_EMBD, 32), nn.ReLU(), nn.Linear(32, N_EMBD))


class SoftMixture(nn.Module):
    def __init__(self, n=2):
        super().__init__()
        self.router = nn.Linear(N_EMBD, n)
        self.experts = [expert() for _ in range(n)]  # here

    def forward(self, x):
        w = torch.softmax(self.router(x), dim=-1)
        return sum(w[..., i, None] * mlp(x) for i, mlp in enumerate(self.experts))


def make():
    return GPT(mlp=SoftMixture)
