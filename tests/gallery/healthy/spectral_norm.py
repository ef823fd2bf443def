"""A projection divided by an estimate of its largest singular value, which training refines."""

from torch.nn.utils.parametrizations import spectral_norm

from tests.gallery.hosts.tiled_block import AttentionBlock


def make():
    model = AttentionBlock()
    spectral_norm(model.attention.proj)
    return model
