"""NaN from a few hundred tokens on: the scan divides by the product of all decays, which runs into zero."""

import torch

from tests.gallery.hosts.recurrence import GatedRecurrence, RecurrentStack

MODULE = ("blocks.0.mixer", "blocks.1.mixer")
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class CumulativeProduct(GatedRecurrence):
    def scan(self, a, b):
        total = torch.cumsum(a.log(), dim=1).exp()
        return total * torch.cumsum(b / total, dim=1)  # here


def make():
    return RecurrentStack(mixer=CumulativeProduct)
