"""Large inputs make NaN: the step size is log(1 + exp(x)), and exp overflows first; in the mixer."""

import torch
from torch import nn

from tests.gallery.hosts.recurrence import GatedRecurrence, RecurrentStack

MODULE = ("blocks.0.mixer", "blocks.1.mixer")
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class SoftplusDecay(GatedRecurrence):
    def decay(self, x):
        step = torch.log(1 + torch.exp(self.to_decay(x)))  # here
        return torch.exp(-step)


def make():
    return RecurrentStack(mixer=SoftplusDecay, norm=nn.Identity)
