"""Plain parts that the healthy subjects change one thing of."""

import torch
from torch import nn

DIM, HEADS, VOCAB = 16, 2, 29


def hidden_from(rows, columns, device):
    """True where a query (one of the last `rows` of `columns`) may not look."""
    return torch.ones(rows, columns, dtype=torch.bool, device=device).triu(columns - rows + 1)


class Attention(nn.Module):
    """Causal attention whose scores, weights and mixing can each be replaced."""

    def __init__(self, dim=DIM, heads=HEADS):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def split(self, x):
        return x.unflatten(2, (-1, self.head_dim)).transpose(1, 2)

    def project(self, x):
        return self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))

    def scores(self, q, k):
        return q @ k.mT * self.head_dim**-0.5

    def weights(self, scores):
        hidden = hidden_from(*scores.shape[-2:], scores.device)
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)

    def mix(self, q, k, v):
        return self.weights(self.scores(q, k)) @ v

    def forward(self, x):
        return self.out(self.mix(*self.project(x)).transpose(1, 2).flatten(2))


class MLP(nn.Sequential):
    def __init__(self, dim=DIM):
        super().__init__(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))


class Block(nn.Module):
    """Norm, mixer, residual; norm, MLP, residual: [B, S, DIM] -> [B, S, DIM]."""

    def __init__(self, mixer=None, mlp=None, norm=nn.LayerNorm):
        super().__init__()
        self.norm_1, self.norm_2 = norm(DIM), norm(DIM)
        self.mixer = Attention() if mixer is None else mixer
        self.mlp = MLP() if mlp is None else mlp

    def forward(self, x):
        x = x + self.mixer(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Model(nn.Module):
    """Token ids to logits around one block."""

    def __init__(self, block=None, vocab=VOCAB):
        super().__init__()
        self.vocab_size = vocab
        self.embed = nn.Embedding(vocab, DIM)
        self.block = Block() if block is None else block
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, vocab)

    def forward(self, ids):
        return self.head(self.norm(self.block(self.embed(ids))))
