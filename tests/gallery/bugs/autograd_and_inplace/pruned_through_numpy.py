"""The gradient is off and nothing raises: small weights are zeroed through a numpy view of what autograd has saved."""

import torch

from tests.gallery.hosts.llama import Attention, Llama

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"GRD402", "GRD101"}


class Pruned(Attention):
    def attend(self, q, k, v, mask):
        logits = torch.einsum("bthd,bshd->bhts", q, k).div(self.head_dim**0.5)
        probs = logits.masked_fill(~mask, -float("inf")).softmax(dim=-1)
        view = probs.detach().numpy()
        view[view < 0.03] = 0.0  # here
        return torch.einsum("bhts,bshd->bthd", probs, v)


def make():
    return Llama(attention=Pruned)
