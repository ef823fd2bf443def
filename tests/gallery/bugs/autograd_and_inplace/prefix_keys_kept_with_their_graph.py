"""A second training step raises or learns from stale keys: those of the learned sink tokens are computed once."""

import torch
from torch import nn

from tests.gallery.hosts.gpt import GPT, N_EMBD, N_HEAD, CausalSelfAttention

MODULE = ("h.0.attn", "h.1.attn")
CODES = {"GRD102", "FWD101", "GRD101", "GRD403"}


class SinkTokens(CausalSelfAttention):
    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(1, 2, N_EMBD))
        self.sink_kv = None

    def core(self, q, k, v):
        if self.sink_kv is None or self.sink_kv[0].dtype != q.dtype:
            self.sink_kv = self.split(self.sinks)[1:]  # here
        B, _, T, D = q.shape
        k, v = (torch.cat([s.expand(B, N_HEAD, 2, D), t], 2) for s, t in zip(self.sink_kv, (k, v), strict=True))
        seen = torch.ones(T, T + 2, dtype=torch.bool, device=q.device).tril(2)
        att = (q @ k.mT / D**0.5).masked_fill(~seen, float("-inf"))
        return att.softmax(-1) @ v


def make():
    return GPT(attention=SinkTokens)
