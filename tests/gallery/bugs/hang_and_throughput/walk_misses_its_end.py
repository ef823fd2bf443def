"""Never returns at lengths that are no multiple of 32: the walk over key tiles waits to hit the end exactly."""

import torch

from tests.gallery.hosts.llama import Attention, Llama

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"HNG101"}


class Walking(Attention):
    def attend(self, q, k, v, mask):
        S, begin, logits = k.shape[1], 0, []
        while begin != max(S, 32):  # here
            if begin < S:
                logits.append(torch.einsum("bthd,bshd->bhts", q, k[:, begin : begin + 32]))
            begin = begin + 32  # here
        scores = torch.cat(logits, dim=-1) / self.head_dim**0.5
        probs = torch.where(mask, scores, torch.finfo(scores.dtype).min).softmax(-1)
        return torch.einsum("bhts,bshd->bthd", probs, v)


def make():
    return Llama(attention=Walking)
