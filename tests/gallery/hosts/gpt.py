"""A decoder of the GPT-2 kind: learned positions, fused projections, biases, dropout, tied weights; ids -> logits."""

import math

import torch
from torch import nn
from torch.nn import functional as F

N_EMBD, N_HEAD, N_LAYER, VOCAB, BLOCK_SIZE = 24, 3, 2, 53, 2304


class LayerNorm(nn.LayerNorm):
    pass


class CausalSelfAttention(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.c_attn = nn.Linear(N_EMBD, 3 * N_EMBD)
        self.c_proj = nn.Linear(N_EMBD, N_EMBD)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)

    def split(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(N_EMBD, dim=2)
        shape = (B, T, N_HEAD, C // N_HEAD)
        return q.view(shape).transpose(1, 2), k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2)

    def bias(self, T, device):
        return torch.tril(torch.ones(T, T, device=device)).view(1, 1, T, T)

    def core(self, q, k, v):
        T = q.size(-2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias(T, q.device) == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        return self.attn_dropout(att) @ v

    def join(self, y):
        B, _, T, _ = y.shape
        return y.transpose(1, 2).contiguous().view(B, T, N_EMBD)

    def forward(self, x):
        q, k, v = self.split(x)
        return self.resid_dropout(self.c_proj(self.join(self.core(q, k, v))))


class MLP(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.c_fc = nn.Linear(N_EMBD, 4 * N_EMBD)
        self.c_proj = nn.Linear(4 * N_EMBD, N_EMBD)
        self.dropout = nn.Dropout(dropout)

    def act(self, x):
        return F.gelu(x)

    def forward(self, x):
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, attention=CausalSelfAttention, mlp=MLP, norm=LayerNorm):
        super().__init__()
        self.ln_1, self.attn = norm(N_EMBD), attention()
        self.ln_2, self.mlp = norm(N_EMBD), mlp()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, block=Block, **parts):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, N_EMBD)
        self.wpe = nn.Embedding(BLOCK_SIZE, N_EMBD)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList([block(**parts) for _ in range(N_LAYER)])
        self.ln_f = parts.get("norm", LayerNorm)(N_EMBD)
        self.lm_head = nn.Linear(N_EMBD, VOCAB, bias=False)
        self.apply(self._init_weights)
        self.lm_head.weight = self.wte.weight

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.1)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def embed(self, idx):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        return self.drop(self.wte(idx) + self.wpe(pos))

    def forward(self, idx):
        x = self.embed(idx)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))
