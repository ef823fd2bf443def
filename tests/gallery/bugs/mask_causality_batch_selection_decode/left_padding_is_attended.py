"""The result depends on the length modulo 16: zeros padded on the left take part in the softmax; in the attention."""

import torch.nn.functional as F

from tests.gallery.hosts.gpt import GPT, CausalSelfAttention

MODULE = ("h.0.attn", "h.1.attn")
CODES = {"FWD202"}


class Padded(CausalSelfAttention):
    def core(self, q, k, v):
        missing = -q.shape[2] % 16
        q, k, v = (F.pad(t, (0, 0, missing, 0)) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, missing:]  # here


def make():
    return GPT(attention=Padded)
