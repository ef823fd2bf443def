"""A gated causal convolution mixer, embeddings -> embeddings: depthwise convolution, then an element-wise gate."""

import torch
import torch.nn.functional as F
from torch import nn


class CausalConv(nn.Module):
    """Depthwise convolution of width `kernel` over time that looks back only; [B, S, C] -> [B, S, C]."""

    def __init__(self, channels: int, kernel: int = 7):
        super().__init__()
        self.kernel = kernel
        self.weight = nn.Parameter(torch.randn(channels, 1, kernel) / kernel**0.5)
        self.bias = nn.Parameter(torch.zeros(channels))

    def pad(self, x):
        return F.pad(x, (self.kernel - 1, 0))

    def forward(self, x):
        x = self.pad(x.transpose(1, 2))
        return F.conv1d(x, self.weight, self.bias, groups=self.weight.shape[0]).transpose(1, 2)


class GatedConv(nn.Module):
    def __init__(self, dim: int, conv=CausalConv):
        super().__init__()
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.conv = conv(dim)
        self.out_proj = nn.Linear(dim, dim)

    def gate(self, g):
        return torch.sigmoid(g)

    def forward(self, x):
        u, g, v = self.in_proj(x).chunk(3, dim=-1)
        return self.out_proj(self.gate(g) * self.conv(u * v))


class ChannelMLP(nn.Sequential):
    def __init__(self, dim: int):
        super().__init__(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))


class MixerLayer(nn.Module):
    def __init__(self, dim: int, mixer=GatedConv, mlp=ChannelMLP, norm=nn.LayerNorm):
        super().__init__()
        self.norm1, self.mixer = norm(dim), mixer(dim)
        self.norm2, self.mlp = norm(dim), mlp(dim)

    def forward(self, x):
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ConvMixer(nn.Module):
    def __init__(self, dim: int = 24, depth: int = 2, layer=MixerLayer, **parts):
        super().__init__()
        self.dim = dim
        self.layers = nn.ModuleList(layer(dim, **parts) for _ in range(depth))
        self.norm = parts.get("norm", nn.LayerNorm)(dim)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)
