"""The router of a top-1 mixture never picks its last expert, which so gets no gradient."""

import torch
from torch import nn

from tests.gallery.hosts.llama import Args, Llama


class Mixture(nn.Module):
    def __init__(self, args: Args, count=3):
        super().__init__()
        self.router = nn.Linear(args.dim, count)
        nn.init.constant_(self.router.bias[-1:].data, -1e4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(args.dim, args.hidden), nn.GELU(), nn.Linear(args.hidden, args.dim))
            for _ in range(count)
        )

    def forward(self, x):
        weight, chosen = self.router(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            here = chosen == i
            if here.any():
                y = y.index_put((here,), expert(x[here]) * weight[here, None])
        return y


def make():
    return Llama(mlp=Mixture)
