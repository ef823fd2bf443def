"""torch's own encoder layers with a causal mask, as a language model: ids [B, S] -> logits [B, S, 30]."""

import torch
from torch import nn

# top

VOCAB, DIM = 30, 16


class CausalLayer(nn.TransformerEncoderLayer):
    # mixer: members

    def forward(self, x, mask=None):
        # mixer: start
        y = super().forward(x, src_mask=mask)
        # mixer: end
        return y


class EncoderModel(nn.Module):
    # model: members

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList([CausalLayer(DIM, 2, 2 * DIM, dropout=0.0, batch_first=True) for _ in range(2)])
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, x):
        # model: start
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device).triu(1)
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = layer(hidden, mask.to(hidden.dtype))
        y = self.head(hidden)
        # model: end
        return y


def make():
    return EncoderModel()
