"""The rolling cache of a 24-token window keeps 24 old keys besides the new one: 25 in decode, 24 in prefill."""

import torch

from tests.gallery.hosts.llama import Attention, Llama, subject

MODULE = ("layers.0.attn", "")
CODES = {"DEC101"}
W = 24


class RollingCache:
    def __init__(self):
        self.keys, self.values, self.length = None, None, 0

    def __len__(self):
        return self.length

    def update(self, k, v):
        self.length += k.shape[1]
        if self.keys is not None:
            k = torch.cat((self.keys, k), 1)
            v = torch.cat((self.values, v), 1)
        self.keys, self.values = k[:, -W:], v[:, -W:]  # here
        return k, v


class Window(Attention):
    def mask(self, T, S, device):
        i, j = torch.arange(S - T, S, device=device), torch.arange(S, device=device)
        lag = i[:, None] - j
        return (lag >= 0) & (lag < W) if T > 1 else torch.ones(1, S, dtype=torch.bool, device=device)


def make():
    return subject(lambda: Llama(attention=Window, n_layers=1), __name__, cache=RollingCache)
