"""After a longer sequence, a shorter one sees its future: the mask kept from before is cut at the wrong end."""

import torch

from tests.gallery.hosts.llama import Attention, Llama

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"FWD201", "FWD202", "FWD206"}


class KeepsMask(Attention):
    _kept = None

    def mask(self, T, S, device):
        if self._kept is None or self._kept.size(0) < S:
            self._kept = torch.tril(torch.ones(S, S, dtype=torch.bool, device=device))
        return self._kept[-T:, :S]  # here


def make():
    return Llama(attention=KeepsMask)
