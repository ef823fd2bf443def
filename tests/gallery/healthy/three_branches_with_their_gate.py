"""The same with its gate on show."""

from tests.gallery.hosts.three_branch import SparseLM, subject


def make():
    return subject(SparseLM, __name__)
