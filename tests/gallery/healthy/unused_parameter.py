"""A mask token from pre-training is still among the parameters, frozen, and nothing reads it."""

import torch
from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer


class Pretrained(ConvMixer):
    def __init__(self):
        super().__init__()
        self.mask_token = nn.Parameter(torch.randn(1, 1, self.dim), requires_grad=False)


def make():
    return Pretrained()
