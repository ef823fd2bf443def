"""Outputs of the order of 1e-4."""

from tests.gallery.hosts.conv_mixer import ConvMixer


class Tiny(ConvMixer):
    def forward(self, x):
        return 1e-4 * super().forward(x)


def make():
    return Tiny()
