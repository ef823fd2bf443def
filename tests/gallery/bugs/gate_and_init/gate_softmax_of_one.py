"""The gate is always exactly one and its layer never learns: a softmax over an axis of size one."""

import torch
from torch import nn

from tests.gallery.hosts.recurrence import DIM, GatedRecurrence, RecurrentStack

MODULE = tuple(f"blocks.{i}.mixer{leaf}" for i in range(2) for leaf in ("", ".importance"))
CODES = {"GRD202", "GAT102", "GAT103"}


class Weighted(GatedRecurrence):
    def __init__(self):
        super().__init__()
        self.importance = nn.Linear(DIM, 1)

    def gate(self, x):
        return super().gate(x) * torch.softmax(self.importance(x), dim=-1)  # here


def make():
    return RecurrentStack(mixer=Weighted)
