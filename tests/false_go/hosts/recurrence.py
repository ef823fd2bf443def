"""A convolution and a gated linear recurrence, offered with its states: [B, S, 20] -> [B, S, 20]."""

import torch
import torch.nn.functional as F
from torch import nn

from nsa_doctor import Adapter

# top

DIM, KERNEL = 20, 4


class Scan(nn.Module):
    """h_t = a_t h_{t-1} + (1 - a_t) u_t after a causal convolution; the cache holds h and the last inputs."""

    # mixer: members

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, KERNEL, groups=DIM)
        self.to_decay, self.to_gate = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x, cache=None):
        past = 0 if cache is None else cache.get("length", 0)
        # mixer: start
        before = x.new_zeros(x.shape[0], KERNEL - 1, DIM) if past == 0 else cache["inputs"]
        inputs = torch.cat([before, x], dim=1)
        u = F.silu(self.conv(inputs.transpose(1, 2)).transpose(1, 2))
        a = torch.sigmoid(self.to_decay(x) + 1)
        b = (1 - a) * u
        if past:
            b = torch.cat([b[:, :1] + a[:, :1] * cache["state"], b[:, 1:]], dim=1)
        shift = 1
        while shift < x.shape[1]:
            b = b + a * F.pad(b, (0, 0, shift, 0))[:, : x.shape[1]]
            a = a * F.pad(a, (0, 0, shift, 0), value=1.0)[:, : x.shape[1]]
            shift *= 2
        if cache is not None:
            cache.update(length=past + x.shape[1], inputs=inputs[:, 1 - KERNEL :], state=b[:, -1:])
        y = self.out(b * F.silu(self.to_gate(x)))
        # mixer: end
        return y


class Recurrence(nn.Module):
    # model: members

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.scan = Scan()

    def forward(self, x, cache=None):
        # model: start
        y = x + self.scan(self.norm(x), cache)
        # model: end
        return y


def prefill(model, x):
    cache = {}
    return model(x, cache), cache


def step(model, x, cache):
    return model(x, cache), cache


def make():
    return Adapter(make=Recurrence, input="embeddings", width=DIM, seams={"prefill": prefill, "step": step})
