"""A module under torch.compile, with a backend that traces and runs as it is."""

import torch

from tests.gallery.hosts.conv_mixer import ConvMixer


def make():
    return torch.compile(ConvMixer(depth=1), backend="eager", dynamic=True)
