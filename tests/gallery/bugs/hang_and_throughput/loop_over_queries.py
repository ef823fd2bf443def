"""Dense attention takes one query at a time in Python, though none waits for another."""

import torch

from tests.gallery.hosts.llama import Attention, Llama

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"PRF101"}


class OneByOne(Attention):
    def attend(self, q, k, v, mask):
        out = []
        offset = k.shape[1] - q.shape[1]
        for t in range(q.shape[1]):
            seen = offset + t + 1
            w = torch.einsum("bhd,bshd->bhs", q[:, t], k[:, :seen])  # here
            w = torch.softmax(w * self.head_dim**-0.5, dim=-1)
            out.append(torch.einsum("bhs,bshd->bhd", w, v[:, :seen]))
        return torch.stack(out, dim=1)


def make():
    return Llama(attention=OneByOne)
