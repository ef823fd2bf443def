"""Keys get no gradient through the scores: `.data` was used to 'save memory'; in the attention."""

import torch

from tests.gallery.hosts.llama import Attention, Llama

MODULE = ("layers.0.attn", "layers.1.attn", "layers.0.attn.wk", "layers.1.attn.wk")
CODES = {"GRD201", "GRD101"}


class DetachedKeys(Attention):
    def attend(self, q, k, v, mask):
        s = torch.matmul(q.transpose(1, 2), k.data.permute(0, 2, 3, 1)) / self.head_dim**0.5  # here
        s = s + torch.zeros_like(s).masked_fill(~mask, -1e30)
        return torch.matmul(s.softmax(-1), v.transpose(1, 2)).transpose(1, 2)


def make():
    return Llama(attention=DetachedKeys)
