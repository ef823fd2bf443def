"""Compression of overlapping blocks of tokens into one key and one value each."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import CobaltConfig


class Compressor(nn.Module):
    """[B, T, G, D] -> [B, N, G, D], N the number of complete blocks.

    mean   the average of a block
    mlp    the average, and an MLP on the block's tokens with their place in it
    conv   a weight for each place and channel, at first the average
    """

    def __init__(self, cfg: CobaltConfig):
        super().__init__()
        self.kind, self.length, self.stride = cfg.compressor, cfg.block_len, cfg.stride
        if self.kind == "mlp":
            self.place = nn.Parameter(torch.zeros(cfg.block_len, cfg.head_dim))
            self.inner = nn.Linear(cfg.block_len * cfg.head_dim, cfg.compressor_hidden)
            self.outer = nn.Linear(cfg.compressor_hidden, cfg.head_dim)
        elif self.kind == "conv":
            self.taps = nn.Parameter(torch.zeros(cfg.block_len, cfg.head_dim))

    def reset_parameters(self, std: float) -> None:
        if self.kind == "mlp":
            nn.init.normal_(self.place, std=std)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, groups, dim = x.shape
        if length < self.length:
            return x.new_zeros(batch, 0, groups, dim)
        blocks = x.unfold(1, self.length, self.stride).transpose(-1, -2)  # [B, N, G, l, D]
        if self.kind == "conv":
            return (blocks * self.taps.softmax(0)).sum(-2)
        mean = blocks.mean(-2)
        if self.kind == "mean":
            return mean
        hidden = F.gelu(self.inner((blocks + self.place).flatten(-2)))
        return mean + self.outer(hidden)
