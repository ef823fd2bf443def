"""A decoded token sees the first key alone: `is_causal` aligns its triangle to the upper left corner."""

import torch.nn.functional as F

from tests.gallery.hosts.llama import Attention, Llama, subject

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"DEC101"}


class Fused(Attention):
    def attend(self, q, k, v, mask):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)  # here


def make():
    return subject(lambda: Llama(attention=Fused), __name__)
