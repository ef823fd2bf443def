"""Backward raises: the softmax's result, which autograd has saved, is multiplied in place; in the attention."""

import math

import torch

from tests.gallery.hosts.gpt import GPT, CausalSelfAttention

MODULE = ("h.0.attn", "h.1.attn")
CODES = {"GRD401", "FWD101"}


class MaskAfter(CausalSelfAttention):
    def core(self, q, k, v):
        T = q.size(-2)
        triangle = self.bias(T, q.device)
        att = torch.softmax((q @ k.mT / math.sqrt(k.size(-1))).masked_fill(triangle == 0, -1e30), dim=-1)
        att *= triangle  # here
        return self.attn_dropout(att) @ v


def make():
    return GPT(attention=MaskAfter)
