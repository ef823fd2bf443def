"""Fast at multiples of 64 and a hundred times slower elsewhere, where it goes through heads and queries one by one."""

import torch
from torch.nn import functional as F

from tests.gallery.hosts.gpt import GPT, CausalSelfAttention

MODULE = ("h.0.attn", "h.1.attn")
CODES = {"PRF101", "HNG202"}


class TwoPaths(CausalSelfAttention):
    def core(self, q, k, v):
        B, H, T, D = q.shape
        if T % 64 == 0:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        o = torch.zeros(B, T, H, D, dtype=q.dtype, device=q.device)
        for h in range(H):
            for t in range(T):
                w = F.softmax(q[:, h, t : t + 1] @ k[:, h, : t + 1].mT / D**0.5, dim=-1)  # here
                o[:, t, h] = (w @ v[:, h, : t + 1]).squeeze(1)
        return o.transpose(1, 2)


def make():
    return GPT(attention=TwoPaths)
