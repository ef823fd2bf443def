"""Online softmax over tiles with ALiBi; -inf above the diagonal, and never a row without a key."""

from tests.gallery.hosts.tiled_block import AttentionBlock


def make():
    return AttentionBlock()
