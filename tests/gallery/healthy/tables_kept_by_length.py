"""Rotary tables are kept for the eight lengths used last."""

from functools import lru_cache

import torch

from tests.gallery.hosts.llama import Attention, Llama


@lru_cache(maxsize=8)
def table(length, half, base):
    at = torch.arange(length, dtype=torch.float64)[:, None]
    return torch.polar(torch.ones(length, half, dtype=torch.float64), at * base ** (-torch.arange(half) / half))


class ComplexRope(Attention):
    def rope(self, x, positions):
        turn = table(int(positions[-1]) + 1, self.head_dim // 2, self.base)[positions].to(x.device)
        wide = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(wide * turn[None, :, None]).flatten(-2).to(x.dtype)


def make():
    return Llama(attention=ComplexRope)
