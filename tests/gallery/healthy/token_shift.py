"""Each token is mixed with the one before by learned weights, and a zero stands before the first."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.gallery.hosts.recurrence import DIM, GatedRecurrence, RecurrentStack


class Shifted(GatedRecurrence):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.rand(DIM))

    def forward(self, x, state=None):
        before = F.pad(x, (0, 0, 1, -1))
        return super().forward(torch.lerp(before, x, self.mix), state)


def make():
    return RecurrentStack(mixer=Shifted)
