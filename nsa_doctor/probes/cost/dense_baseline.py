"""Plain dense attention as wide as a subject: what its times are held against, on the same machine at the same time."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.subject.contract import Subject

_HEAD_SIZE = 64
_MOST_WIDTH = 1024  # of a token model, whose width is its vocabulary


def dense_twin(subject: Subject) -> Subject:
    """A subject that takes the same input and is one layer of dense causal attention in plain torch."""
    width = subject.width if subject.input == "embeddings" else min(subject.width, _MOST_WIDTH)
    vocabulary = subject.width if subject.input == "tokens" else None
    return replace(
        subject,
        name="dense attention",
        build=lambda seed: _Dense(width, vocabulary).to(getattr(torch, subject.dtype)),
        forward=lambda module, x: module(x),
        geometry=None,
    )


class _Dense(nn.Module):
    def __init__(self, width: int, vocabulary: int | None) -> None:
        super().__init__()
        self.heads = max(1, width // _HEAD_SIZE) if width % max(1, width // _HEAD_SIZE) == 0 else 1
        self.embedding = None if vocabulary is None else nn.Embedding(vocabulary, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, vocabulary or width)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.embedding is None else self.embedding(x)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        out: Tensor = self.out(mixed)
        return out
