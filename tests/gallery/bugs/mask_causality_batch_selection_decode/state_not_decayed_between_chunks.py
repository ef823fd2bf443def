"""Decoding several tokens at once forgets the state after the first of them: it is added in front, never carried on."""

from tests.gallery.hosts.recurrence import GatedRecurrence, RecurrentStack, subject

MODULE = ("blocks.0.mixer", "blocks.1.mixer")
CODES = {"DEC101", "DEC102"}


class Forgetful(GatedRecurrence):
    def forward(self, x, state=None):
        a = self.decay(x)
        h = self.scan(a, (1 - a) * self.to_input(x))
        if state is not None:
            h = h + a * state  # here
        return self.out(h * self.gate(x)), h[:, -1:]


def make():
    return subject(lambda: RecurrentStack(mixer=Forgetful), __name__)
