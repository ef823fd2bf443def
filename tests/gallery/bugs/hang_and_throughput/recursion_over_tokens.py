"""Raises RecursionError at about a thousand tokens: the scan calls itself once a token."""

import torch

from tests.gallery.hosts.recurrence import GatedRecurrence, RecurrentStack

MODULE = ("blocks.0.mixer", "blocks.1.mixer")
CODES = {"FWD101", "PRF101"}


class Recursive(GatedRecurrence):
    def scan(self, a, b):
        states = []

        def state(t):
            h = b[:, t] if t == 0 else a[:, t] * state(t - 1) + b[:, t]  # here
            states.append(h)
            return h

        state(b.shape[1] - 1)
        return torch.stack(states, dim=1)


def make():
    return RecurrentStack(mixer=Recursive)
