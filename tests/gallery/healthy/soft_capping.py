"""Scores and logits are capped by a scaled tanh, as in Gemma 2."""

import torch

from tests.gallery.hosts.llama import Attention, Llama


def cap(x, limit):
    return limit * torch.tanh(x / limit)


class Capped(Attention):
    def attend(self, q, k, v, mask):
        s = cap(torch.einsum("bthd,bshd->bhts", q, k) / self.head_dim**0.5, 20.0)
        p = s.masked_fill(~mask, torch.finfo(s.dtype).min).softmax(-1)
        return torch.einsum("bhts,bshd->bthd", p, v)


class CappedLlama(Llama):
    def forward(self, ids, caches=None):
        return cap(super().forward(ids, caches), 5.0)


def make():
    return CappedLlama(attention=Capped)
