"""In-place writes on fresh tensors that nobody saved: relu_, +=, masked_fill_, index assignment."""

import torch
from torch import nn


class Thrifty(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.dim = dim
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.q, self.k = nn.Linear(dim, 8), nn.Linear(dim, 8)

    def forward(self, x):
        S = x.shape[1]
        s = self.q(x) @ self.k(x).mT
        s *= 8**-0.5
        s.masked_fill_(torch.ones(S, S, dtype=torch.bool, device=x.device).triu_(1), float("-inf"))
        y = s.softmax(-1) @ x
        y += x
        h = self.up(y).relu_()
        out = torch.empty_like(x)
        out[:, :] = self.down(h)
        out += y
        return out


def make():
    return Thrifty()
