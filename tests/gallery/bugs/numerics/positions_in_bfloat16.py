"""Beyond 256 tokens neighbours share an angle: rotary positions are cast to bfloat16 before they are multiplied."""

import torch
from torch import nn

from tests.gallery.hosts.llama import Attention, Llama

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"FWD304"}


class NarrowRope(Attention):
    def __init__(self, args):
        super().__init__(args)
        for projection in (self.wq, self.wk):  # heads as decided as trained ones
            nn.init.normal_(projection.weight, std=0.5)

    def rope(self, x, positions):
        inv_freq = self.base ** (-torch.arange(0, self.head_dim, 2, device=x.device) / self.head_dim)
        angles = torch.outer(positions.to(x.dtype), inv_freq.to(x.dtype))  # here
        angles = torch.cat([angles, angles], dim=-1)[None, :, None]
        rotated = torch.cat([-x[..., self.head_dim // 2 :], x[..., : self.head_dim // 2]], dim=-1)
        return x * angles.cos() + rotated * angles.sin()


def make():
    return Llama(attention=NarrowRope).bfloat16()
