"""Three gated branches, one of which picks blocks by a hard top-k."""

from tests.gallery.hosts.three_branch import SparseLM


def make():
    return SparseLM()
