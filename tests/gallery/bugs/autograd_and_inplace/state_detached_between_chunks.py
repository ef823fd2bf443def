"""Gradients stop every 16 tokens: the carried state is detached at chunk borders inside one forward."""

import torch

from tests.gallery.hosts.recurrence import GatedRecurrence, RecurrentStack, parallel_scan

MODULE = ("blocks.0.mixer", "blocks.1.mixer")
CODES = {"GRD101"}


class Chunked(GatedRecurrence):
    def scan(self, a, b):
        carry, out = torch.zeros_like(b[:, 0]), []
        for a_chunk, b_chunk in zip(a.split(16, 1), b.split(16, 1), strict=True):
            inner = parallel_scan(a_chunk, b_chunk) + a_chunk.cumprod(1) * carry[:, None]
            out.append(inner)
            carry = inner[:, -1].detach()  # here
        return torch.cat(out, 1)


def make():
    return RecurrentStack(mixer=Chunked)
