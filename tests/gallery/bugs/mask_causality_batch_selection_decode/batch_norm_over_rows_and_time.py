"""Channels are normalised over all rows and tokens of the batch; a BatchNorm stands where a LayerNorm should."""

from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer

MODULE = tuple(f"layers.{i}.{norm}{leaf}" for i in range(2) for norm in ("norm1", "norm2") for leaf in ("", ".bn"))
CODES = {"FWD201", "FWD202", "FWD203", "FWD204"}


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, track_running_stats=False)  # here

    def forward(self, x):
        return self.bn(x.flatten(0, 1)).view_as(x) if x.shape[:2].numel() > 1 else x


MODULE += ("norm", "norm.bn")


def make():
    return ConvMixer(norm=Norm)
