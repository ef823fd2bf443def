"""Token ids through a GRU to logits."""

from torch import nn


class GRULM(nn.Module):
    def __init__(self, vocab=40, width=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.Linear(width, vocab)

    def forward(self, tokens):
        return self.decoder(self.gru(self.emb(tokens))[0])


def make():
    return GRULM()
