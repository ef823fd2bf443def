"""Memory grows with every call: projections are cached under the input tensor itself, which never comes again."""

from tests.gallery.hosts.recurrence import GatedRecurrence, RecurrentStack

MODULE = ("blocks.0.mixer", "blocks.1.mixer")
CODES = {"PRF301"}


class Memoised(GatedRecurrence):
    def __init__(self):
        super().__init__()
        self.known = {}

    def gate(self, x):
        if x not in self.known:
            self.known[x] = super().gate(x)  # here
        return self.known[x]


def make():
    return RecurrentStack(mixer=Memoised)
