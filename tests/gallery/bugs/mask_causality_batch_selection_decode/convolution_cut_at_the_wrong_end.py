"""The convolution pads both sides and drops the head of the result in place of the tail: six tokens of future."""

from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer, GatedConv

MODULE = tuple(f"layers.{i}.mixer.conv{leaf}" for i in range(2) for leaf in ("", ".conv1d"))
CODES = {"FWD201", "FWD202"}


class MambaConv(nn.Module):
    def __init__(self, channels, d_conv=7):
        super().__init__()
        self.d_conv = d_conv
        self.conv1d = nn.Conv1d(channels, channels, d_conv, groups=channels, padding=d_conv - 1)

    def forward(self, x):
        y = self.conv1d(x.transpose(1, 2))
        return y[..., self.d_conv - 1 :].transpose(1, 2)  # here


def make():
    return ConvMixer(mixer=lambda dim: GatedConv(dim, conv=MambaConv))
