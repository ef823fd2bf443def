"""The optimizer's copy of the weight goes stale: each forward makes a new Parameter of its normalised value."""

from torch import nn
from torch.nn import functional as F

from tests.gallery.hosts.conv_mixer import CausalConv, ConvMixer, GatedConv

MODULE = ("layers.0.mixer.conv", "layers.1.mixer.conv")
CODES = {"GRD201", "GRD203", "GRD205"}


class UnitTaps(CausalConv):
    def forward(self, x):
        self.weight = nn.Parameter(F.normalize(self.weight, dim=-1))  # here
        return super().forward(x)


def make():
    return ConvMixer(mixer=lambda dim: GatedConv(dim, conv=UnitTaps))
