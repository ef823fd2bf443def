"""Never returns at odd lengths: padding grows by two until it is a multiple of eight; in the attention."""

import torch.nn.functional as F

from tests.gallery.hosts.gpt import GPT, CausalSelfAttention

MODULE = ("h.0.attn", "h.1.attn")
CODES = {"HNG101"}


class PadToEight(CausalSelfAttention):
    def core(self, q, k, v):
        T = q.shape[2]
        padded = T
        while padded % 8:  # here
            padded += 2  # here
        q, k, v = (F.pad(t, (0, 0, 0, padded - T)) for t in (q, k, v))
        return super().core(q, k, v)[:, :, :T]


def make():
    return GPT(attention=PadToEight)
