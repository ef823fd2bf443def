"""The convolution is centred, so each token sees three ahead; padding='same' where it has to be on the left."""

from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer, GatedConv

CODES = {"FWD201", "FWD202"}


class Same(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1d = nn.Conv1d(channels, channels, kernel_size=7, padding="same", groups=channels)  # here

    def forward(self, x):
        return self.conv1d(x.mT).mT


MODULE = tuple(f"layers.{i}.mixer.conv{leaf}" for i in range(2) for leaf in ("", ".conv1d"))


def make():
    return ConvMixer(mixer=lambda dim: GatedConv(dim, conv=Same))
