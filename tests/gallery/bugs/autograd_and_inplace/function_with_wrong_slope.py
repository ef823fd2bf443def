"""The gradient of a hand-written activation lacks one of its two terms; in the feed-forward part."""

import torch

from tests.gallery.hosts.gpt import GPT, MLP

MODULE = ("h.0.mlp", "h.1.mlp")
CODES = {"GRD101"}


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s)  # here


class SwishMLP(MLP):
    def act(self, x):
        return Swish.apply(x)


def make():
    return GPT(mlp=SwishMLP)
