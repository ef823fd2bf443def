"""A gated linear recurrence computed by a scan, with its state as decode cache."""

from tests.gallery.hosts.recurrence import RecurrentStack, subject


def make():
    return subject(RecurrentStack, __name__)
