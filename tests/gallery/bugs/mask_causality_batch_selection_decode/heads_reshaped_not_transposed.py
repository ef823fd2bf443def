"""Heads are joined by a reshape of [B, H, T, D], which mixes time with heads; in the attention."""

from tests.gallery.hosts.gpt import GPT, N_EMBD, CausalSelfAttention

MODULE = ("h.0.attn", "h.1.attn")
CODES = {"FWD201", "FWD202"}


class Reshaped(CausalSelfAttention):
    def join(self, y):
        B, _, T, _ = y.shape
        return y.reshape(B, T, N_EMBD)  # here


def make():
    return GPT(attention=Reshaped)
