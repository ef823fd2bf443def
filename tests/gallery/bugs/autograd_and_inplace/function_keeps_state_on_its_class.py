"""The first layer's gradient uses the last layer's activations: a Function keeps them on its class, not on ctx."""

import torch

from tests.gallery.hosts.conv_mixer import ConvMixer, GatedConv

MODULE = ("layers.0.mixer", "layers.1.mixer")
CODES = {"GRD101"}


class Gate(torch.autograd.Function):
    saved = None

    @staticmethod
    def forward(ctx, g):
        Gate.saved = torch.sigmoid(g)  # here
        return Gate.saved.clone()

    @staticmethod
    def backward(ctx, grad):
        s = Gate.saved
        return grad * s * (1 - s)


class CustomGate(GatedConv):
    def gate(self, g):
        return Gate.apply(g)


def make():
    return ConvMixer(mixer=CustomGate)
