"""Each decoded token is rotated as if it were the first one; the attention forgets how many came before."""

import torch

from tests.gallery.hosts.llama import Attention, Llama, subject

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"DEC101"}


class Restarts(Attention):
    def positions(self, T, past, device):
        return torch.arange(T, device=device)  # here


def make():
    return subject(lambda: Llama(attention=Restarts), __name__)
