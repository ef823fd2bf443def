"""A hand-written attention scales its scores forward and forgets the scale backward; in the attention."""

import torch

from tests.gallery.hosts.llama import Attention, Llama

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"GRD101"}


class ScaledScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, scale):
        ctx.save_for_backward(q, k)
        return torch.einsum("bthd,bshd->bhts", q, k) * scale

    @staticmethod
    def backward(ctx, grad):
        q, k = ctx.saved_tensors
        dq = torch.einsum("bhts,bshd->bthd", grad, k)
        dk = torch.einsum("bhts,bthd->bshd", grad, q)
        return dq, dk, None  # here


class HandWritten(Attention):
    def attend(self, q, k, v, mask):
        s = ScaledScores.apply(q, k, self.head_dim**-0.5)
        p = s.masked_fill(mask.logical_not(), float("-inf")).softmax(-1)
        return torch.einsum("bhts,bshd->bthd", p, v)


def make():
    return Llama(attention=HandWritten)
