"""The causal mask is kept between calls, grown when a longer sequence comes and cut from its corner."""

import torch

from tests.gallery.hosts.gpt import GPT, CausalSelfAttention


class KeptMask(CausalSelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("tri", torch.tril(torch.ones(1, 1)), persistent=False)

    def bias(self, T, device):
        if self.tri.shape[0] < T:
            size = 1 << (T - 1).bit_length()
            self.tri = torch.tril(torch.ones(size, size, device=device))
        return self.tri[:T, :T]


def make():
    return GPT(attention=KeptMask)
