"""Learned positions for 128 tokens and not one more, which the subject says."""

import torch
from torch import nn

from nsa_doctor.subject.contract import Subject


class Short(nn.Module):
    def __init__(self, limit=128):
        super().__init__()
        self.tok, self.pos = nn.Embedding(31, 16), nn.Embedding(limit, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 31)

    def forward(self, ids):
        S = ids.shape[1]
        h = self.tok(ids) + self.pos.weight[:S]
        mask = torch.triu(torch.ones(S, S, dtype=torch.bool, device=ids.device), 1)
        return self.head(self.block(h, src_mask=mask))


def make():
    return Subject(
        name=__name__,
        build=lambda seed: Short(),
        forward=lambda model, ids: model(ids),
        input="tokens",
        width=31,
        max_length=127,
        packages=("tests",),
    )
