"""Weights are normalised over queries in place of keys, so later tokens change earlier ones; in the attention."""

import math

from tests.gallery.hosts.gpt import GPT, CausalSelfAttention

MODULE = ("h.0.attn", "h.1.attn")
CODES = {"FWD201", "FWD202"}


class Transposed(CausalSelfAttention):
    def core(self, q, k, v):
        T = q.size(-2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.bias(T, q.device) == 0, float("-inf"))
        return self.attn_dropout(att.softmax(dim=2)) @ v  # here


def make():
    return GPT(attention=Transposed)
