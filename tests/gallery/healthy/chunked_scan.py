"""The recurrence in chunks of 16, each starting from the last state of the one before, gradients and all."""

import torch

from tests.gallery.hosts.recurrence import GatedRecurrence, RecurrentStack, parallel_scan, subject


class Chunks(GatedRecurrence):
    def scan(self, a, b):
        carry, out = torch.zeros_like(b[:, :1]), []
        for start in range(0, b.shape[1], 16):
            a_chunk, b_chunk = a[:, start : start + 16], b[:, start : start + 16]
            h = parallel_scan(a_chunk, b_chunk) + torch.cumprod(a_chunk, dim=1) * carry
            carry = h[:, -1:]
            out.append(h)
        return torch.cat(out, dim=1)


def make():
    return subject(lambda: RecurrentStack(mixer=Chunks), __name__)
