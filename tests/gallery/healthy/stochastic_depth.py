"""In training each row skips a branch now and then; in eval mode none does."""

import torch

from tests.gallery.hosts.conv_mixer import ConvMixer, MixerLayer


class DropPath(MixerLayer):
    def keep(self, x):
        if not self.training:
            return 1.0
        return (torch.rand(x.shape[0], 1, 1, device=x.device) < 0.8).to(x.dtype) / 0.8

    def forward(self, x):
        x = x + self.keep(x) * self.mixer(self.norm1(x))
        return x + self.keep(x) * self.mlp(self.norm2(x))


def make():
    return ConvMixer(layer=DropPath)
