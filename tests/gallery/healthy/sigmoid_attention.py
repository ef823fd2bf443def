"""Weights are sigmoids, so a row need not add up to one; the bias makes up for the length."""

import math

import torch

from tests.gallery.hosts.gpt import GPT, CausalSelfAttention


class SigmoidAttention(CausalSelfAttention):
    def core(self, q, k, v):
        at = torch.arange(1, q.size(2) + 1, device=q.device, dtype=q.dtype)
        s = q @ k.mT / math.sqrt(q.size(-1)) - at.log()[:, None]
        return torch.sigmoid(s) * self.bias(q.size(2), q.device) @ v


def make():
    return GPT(attention=SigmoidAttention)
