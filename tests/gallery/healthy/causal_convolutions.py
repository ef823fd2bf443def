"""A mixer without attention: causal depthwise convolutions and gates."""

from tests.gallery.hosts.conv_mixer import ConvMixer


def make():
    return ConvMixer()
