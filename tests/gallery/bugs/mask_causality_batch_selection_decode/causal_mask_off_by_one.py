"""Every token sees one token ahead; the attention's mask keeps one diagonal too many."""

import torch

from tests.gallery.hosts.llama import Attention, Llama

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"FWD201", "FWD202"}


class OffByOne(Attention):
    def mask(self, T, S, device):
        i = torch.arange(S - T, S, device=device)[:, None]
        j = torch.arange(S, device=device)[None, :]
        return j <= i + 1  # here


def make():
    return Llama(attention=OffByOne)
