"""A language model with learned positions, at most 512 tokens: ids [B, S] -> logits [B, S, 40]."""

import torch
import torch.nn.functional as F
from torch import nn

# top

VOCAB, DIM, LENGTH = 40, 24, 512


class Attention(nn.Module):
    # mixer: members

    def __init__(self):
        super().__init__()
        self.to_qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.to_out = nn.Linear(DIM, DIM)

    def forward(self, x):
        # mixer: start
        q, k, v = self.to_qkv(x).view(*x.shape[:2], 3, 2, DIM // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.to_out(y.transpose(1, 2).reshape(x.shape))
        # mixer: end
        return y


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Decoder(nn.Module):
    # model: members

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)

    def forward(self, x):
        # model: start
        hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            hidden = layer(hidden)
        y = self.head(self.norm(hidden))
        # model: end
        return y


def make():
    return Decoder()
