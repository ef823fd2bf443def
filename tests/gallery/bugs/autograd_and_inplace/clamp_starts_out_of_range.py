"""The learned decay never learns: it starts below the clamp's lower bound, where the gradient is zero."""

import torch
from torch import nn

from tests.gallery.hosts.recurrence import GatedRecurrence, RecurrentStack

MODULE = ("blocks.0.mixer", "blocks.1.mixer")
CODES = {"GRD202"}


class FixedRange(GatedRecurrence):
    def __init__(self):
        super().__init__()
        self.log_rate = nn.Parameter(torch.full((24,), -3.0))

    def decay(self, x):
        rate = self.log_rate.clamp(min=-2.0, max=2.0).exp()  # here
        return torch.exp(-rate * torch.sigmoid(self.to_decay(x)))


def make():
    return RecurrentStack(mixer=FixedRange)
