"""A window of 24 tokens in prefill, and a cache of the last 23 and the new one in decode."""

import torch

from tests.gallery.hosts.llama import Attention, Llama, subject

W = 24


class RollingCache:
    def __init__(self):
        self.k = self.v = None
        self.seen = 0

    def __len__(self):
        return self.seen

    def update(self, k, v):
        self.seen += k.shape[1]
        if self.k is not None:
            k, v = torch.cat([self.k, k], 1), torch.cat([self.v, v], 1)
        self.k, self.v = k[:, 1 - W :], v[:, 1 - W :]
        return k, v


class Window(Attention):
    def mask(self, T, S, device):
        return super().mask(T, S, device).triu(S - T - W + 1)


def make():
    return subject(lambda: Llama(attention=Window), __name__, cache=RollingCache)
