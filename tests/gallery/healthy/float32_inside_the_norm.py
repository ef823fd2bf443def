"""Norms that always compute in float32, whatever the model's dtype."""

import torch

from tests.gallery.hosts.llama import Llama, RMSNorm


class Float32Norm(RMSNorm):
    def forward(self, x):
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)


def make():
    return Llama(norm=Float32Norm)
