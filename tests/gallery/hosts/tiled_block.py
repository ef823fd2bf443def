"""One attention block on embeddings, with linear distance bias (ALiBi), computed tile by tile like FlashAttention."""

import torch
from torch import nn


class TiledAttention(nn.Module):
    tile = 64

    def __init__(self, dim: int = 24, heads: int = 3):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("slopes", 2.0 ** -torch.arange(1.0, heads + 1))

    def tile_scores(self, q, k, rows, columns):
        """Scores [B, H, rows, columns] of one tile; what may not be seen is -inf."""
        distance = rows[:, None] - columns[None, :]
        s = q @ k.mT / self.head_dim**0.5 - self.slopes[:, None, None] * distance
        return s.masked_fill(distance < 0, float("-inf"))

    def start(self, q):
        peak = q.new_full((*q.shape[:-1], 1), float("-inf"))
        return peak, torch.zeros_like(peak), torch.zeros_like(q)

    def fold(self, running, s, v):
        """One tile more: running (peak, total, sum) of online softmax."""
        peak, total, acc = running
        higher = torch.maximum(peak, s.amax(-1, keepdim=True))
        rescale, p = (peak - higher).exp(), (s - higher).exp()
        return higher, total * rescale + p.sum(-1, keepdim=True), acc * rescale + p @ v

    def finish(self, running):
        _, total, acc = running
        return acc / total

    def key_tiles(self, last_row):
        return range(0, last_row + 1, self.tile)

    def attention(self, q, k, v):
        S, out = q.shape[2], []
        at = torch.arange(S, device=q.device)
        for first in range(0, S, self.tile):
            rows = at[first : first + self.tile]
            q_tile = q[:, :, first : first + self.tile]
            running = self.start(q_tile)
            for begin in self.key_tiles(first + len(rows) - 1):
                columns = at[begin : begin + self.tile]
                s = self.tile_scores(q_tile, k[:, :, begin : begin + self.tile], rows, columns)
                running = self.fold(running, s, v[:, :, begin : begin + self.tile])
            out.append(self.finish(running))
        return torch.cat(out, dim=2)

    def forward(self, x):
        B, S, C = x.shape
        q, k, v = self.qkv(x).view(B, S, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        o = self.attention(q, k, v)
        return self.proj(o.transpose(1, 2).reshape(B, S, C))


class AttentionBlock(nn.Module):
    def __init__(self, attention=TiledAttention, norm=nn.LayerNorm, dim: int = 24):
        super().__init__()
        self.dim = dim
        self.norm = norm(dim)
        self.attention = attention(dim)

    def forward(self, x):
        return x + self.attention(self.norm(x))
