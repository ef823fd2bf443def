"""Raises in float16: hidden scores are filled with -1e9, which the type cannot hold; in the attention."""

from tests.gallery.hosts.gpt import GPT, CausalSelfAttention

MODULE = ("h.0.attn", "h.1.attn")
CODES = {"FWD101"}


class MinusABillion(CausalSelfAttention):
    def core(self, q, k, v):
        T = q.size(-2)
        att = q @ k.transpose(-2, -1) / k.size(-1) ** 0.5
        att = att.masked_fill(self.bias(T, q.device) == 0, -1e9)  # here
        return self.attn_dropout(att.softmax(-1)) @ v


def make():
    return GPT(attention=MinusABillion).half()
