"""The first token is mixed with the last one: the shift by one token is a roll."""

import torch
from torch import nn

from tests.gallery.hosts.recurrence import DIM, GatedRecurrence, RecurrentStack

MODULE = ("blocks.0.mixer", "blocks.1.mixer")
CODES = {"FWD201", "FWD202"}


class TokenShift(GatedRecurrence):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.rand(DIM))

    def forward(self, x, state=None):
        previous = torch.roll(x, shifts=1, dims=1)  # here
        return super().forward(torch.lerp(previous, x, self.mu), state)


def make():
    return RecurrentStack(mixer=TokenShift)
