"""Prefill looks back 16 tokens, decoding looks at the whole cache: nothing cuts it."""

from tests.gallery.hosts.llama import Attention, Llama, subject

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"DEC101"}
WINDOW = 16


class Windowed(Attention):
    def mask(self, T, S, device):
        causal = super().mask(T, S, device)
        if T == 1:  # one query needs no mask  # here
            return causal
        return causal.triu(diagonal=S - T - WINDOW + 1)


def make():
    return subject(lambda: Llama(attention=Windowed), __name__)
