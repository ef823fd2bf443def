"""The gain of a hand-written norm never gets a gradient: backward returns None in its place."""

import torch
from torch import nn

from tests.gallery.hosts.recurrence import RecurrentStack

MODULE = ("blocks.0.norm", "blocks.1.norm")
CODES = {"GRD201", "GRD202", "GRD101"}


class RMS(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, gain, r)
        return x * r * gain

    @staticmethod
    def backward(ctx, grad):
        x, gain, r = ctx.saved_tensors
        g = grad * gain
        dx = r * g - x * r**3 * (g * x).mean(-1, keepdim=True)
        return dx, None  # here


class FusedRMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return RMS.apply(x, self.gain)


def make():
    return RecurrentStack(norm=FusedRMSNorm)
