"""A gated linear recurrence, embeddings -> embeddings: h_t = a_t h_{t-1} + (1 - a_t) u_t, by a scan or step by step."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nsa_doctor.subject.contract import Subject

DIM = 16


def parallel_scan(a, b):
    """All h_t = a_t h_{t-1} + b_t at once, in log2(S) rounds; a and b [B, S, C]."""
    S, shift = a.shape[1], 1
    while shift < S:
        before_a = F.pad(a, (0, 0, shift, 0), value=1.0)[:, :S]
        before_b = F.pad(b, (0, 0, shift, 0))[:, :S]
        a, b = a * before_a, b + a * before_b
        shift *= 2
    return b


class GatedRecurrence(nn.Module):
    def __init__(self, dim: int = DIM, inner: int = 24):
        super().__init__()
        self.to_decay = nn.Linear(dim, inner)
        self.to_input = nn.Linear(dim, inner)
        self.to_gate = nn.Linear(dim, inner)
        self.out = nn.Linear(inner, dim)

    def decay(self, x):
        return torch.sigmoid(self.to_decay(x) + 2.0)

    def scan(self, a, b):
        return parallel_scan(a, b)

    def gate(self, x):
        return F.silu(self.to_gate(x))

    def forward(self, x, state=None):
        """The output, and the last state [B, 1, C]; `state` is that of the tokens before x."""
        a = self.decay(x)
        b = (1 - a) * self.to_input(x)
        if state is not None:
            b = torch.cat([b[:, :1] + a[:, :1] * state, b[:, 1:]], dim=1)
        h = self.scan(a, b)
        return self.out(h * self.gate(x)), h[:, -1:]


class Layer(nn.Module):
    def __init__(self, mixer=GatedRecurrence, norm=nn.LayerNorm):
        super().__init__()
        self.norm = norm(DIM)
        self.mixer = mixer()

    def forward(self, x, state=None):
        y, state = self.mixer(self.norm(x), state)
        return x + y, state


class RecurrentStack(nn.Module):
    def __init__(self, depth: int = 2, layer=Layer, **parts):
        super().__init__()
        self.dim = DIM
        self.blocks = nn.ModuleList([layer(**parts) for _ in range(depth)])

    def run(self, x, states):
        after = []
        for block, state in zip(self.blocks, states, strict=True):
            x, state = block(x, state)
            after.append(state)
        return x, after

    def forward(self, x):
        return self.run(x, [None] * len(self.blocks))[0]


def subject(make, name: str, **seams: Any) -> Subject:
    """The stack with its states as decode cache."""

    def build(seed):
        torch.manual_seed(seed)
        return make()

    return Subject(
        name=name,
        build=build,
        forward=lambda model, x: model(x),
        input="embeddings",
        width=DIM,
        **{
            "prefill": lambda model, x: model.run(x, [None] * len(model.blocks)),
            "step": lambda model, x, states: model.run(x, states),
            "packages": ("tests",),
            "max_length": 512,
            **seams,
        },
    )
