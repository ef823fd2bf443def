"""A learned logit per head joins each softmax and takes weight away; weights add up to less than one."""

import torch
from torch import nn

from tests.gallery.hosts.gpt import GPT, N_HEAD, CausalSelfAttention


class WithSink(CausalSelfAttention):
    def __init__(self):
        super().__init__()
        self.sink = nn.Parameter(torch.zeros(N_HEAD))

    def core(self, q, k, v):
        B, H, T, D = q.shape
        s = (q @ k.mT / D**0.5).masked_fill(self.bias(T, q.device) == 0, float("-inf"))
        s = torch.cat([self.sink.view(1, H, 1, 1).expand(B, H, T, 1), s], dim=-1)
        return s.softmax(-1)[..., 1:] @ v


def make():
    return GPT(attention=WithSink)
