"""One key head for four query heads, in torch's fused attention."""

import torch.nn.functional as F

from tests.gallery.hosts.llama import Attention, Llama


class Fused(Attention):
    def expand_kv(self, kv):
        return kv

    def attend(self, q, k, v, mask):
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)


def make():
    return Llama(attention=Fused, n_kv_heads=1)
