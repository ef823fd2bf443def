"""Healthy attention of other kinds: positions, windows, sinks, caps, groups and how weights are made."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.false_go.healthy._parts import DIM, HEADS, Attention, Block, hidden_from


def distances(S, device):
    at = torch.arange(S, device=device)
    return at[:, None] - at[None]


class ComplexRotation(Attention):
    def rotated(self, x):
        half = self.head_dim // 2
        wide = torch.promote_types(x.dtype, torch.float32)
        angles = torch.arange(x.shape[2], device=x.device, dtype=wide)[:, None] * 100.0 ** (
            -torch.arange(half, device=x.device, dtype=wide) / half
        )
        pairs = torch.view_as_complex(x.to(wide).unflatten(3, (half, 2)).contiguous())
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(3).to(x.dtype)

    def scores(self, q, k):
        return super().scores(self.rotated(q), self.rotated(k))


def complex_rotary():
    return Block(ComplexRotation())


class RelativeBias(Attention):
    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(8, HEADS)

    def scores(self, q, k):
        bucket = distances(q.shape[2], q.device).clamp(min=0).add(1).log2().long().clamp(max=7)
        return super().scores(q, k) + self.bias(bucket).permute(2, 0, 1)


def relative_bias():
    return Block(RelativeBias())


class Linearly(Attention):
    def scores(self, q, k):
        slopes = torch.tensor([0.5, 0.125], device=q.device, dtype=q.dtype)[:, None, None]
        return super().scores(q, k) - slopes * distances(q.shape[2], q.device)


def alibi():
    return Block(Linearly())


class Windowed(Attention):
    def weights(self, scores):
        apart = distances(scores.shape[-1], scores.device)
        return scores.masked_fill((apart < 0) | (apart >= 20), float("-inf")).softmax(-1)


def sliding_window():
    return Block(Windowed())


class Dilated(Attention):
    def weights(self, scores):
        apart = distances(scores.shape[-1], scores.device)
        return scores.masked_fill((apart < 0) | (apart % 3 != 0), float("-inf")).softmax(-1)


def dilated_window():
    return Block(Dilated())


class Sinks(Attention):
    def __init__(self):
        super().__init__()
        self.sink = nn.Parameter(torch.zeros(HEADS, 1, 1))

    def weights(self, scores):
        scores = scores.masked_fill(hidden_from(*scores.shape[-2:], scores.device), float("-inf"))
        sink = self.sink.to(scores.dtype).expand(*scores.shape[:1], HEADS, scores.shape[2], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


def learned_sinks():
    return Block(Sinks())


class WindowAndFirst(Attention):
    def weights(self, scores):
        apart = distances(scores.shape[-1], scores.device)
        first = torch.arange(scores.shape[-1], device=scores.device) < 4
        return scores.masked_fill((apart < 0) | (apart >= 16) & ~first, float("-inf")).softmax(-1)


def window_and_first_tokens():
    return Block(WindowAndFirst())


class SoftCapped(Attention):
    def scores(self, q, k):
        return 20 * torch.tanh(super().scores(q, k) / 20)


def soft_capped_scores():
    return Block(SoftCapped())


class Grouped(Attention):
    def __init__(self, groups):
        super().__init__(heads=4)
        self.k = nn.Linear(DIM, groups * self.head_dim)
        self.v = nn.Linear(DIM, groups * self.head_dim)

    def mix(self, q, k, v):
        times = q.shape[1] // k.shape[1]
        return super().mix(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))


def grouped_queries():
    return Block(Grouped(2))


def multi_query():
    return Block(Grouped(1))


class UnitLength(Attention):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((HEADS, 1, 1), 4.0))

    def scores(self, q, k):
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.scale


def cosine_attention():
    return Block(UnitLength())


class NormedKeys(Attention):
    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(self.head_dim), nn.LayerNorm(self.head_dim)

    def scores(self, q, k):
        return super().scores(self.q_norm(q), self.k_norm(k))


def normed_queries_and_keys():
    return Block(NormedKeys())


class Sigmoidal(Attention):
    def weights(self, scores):
        seen = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)[:, None]
        return torch.sigmoid(scores - seen.log()) * ~hidden_from(*scores.shape[-2:], scores.device)


def sigmoid_attention():
    return Block(Sigmoidal())


class Rectified(Attention):
    def weights(self, scores):
        weights = scores.relu().square() * ~hidden_from(*scores.shape[-2:], scores.device)
        return weights / (weights.sum(-1, keepdim=True) + 1e-3)


def rectified_attention():
    return Block(Rectified())


class Differential(Attention):
    def __init__(self):
        super().__init__(heads=4)
        self.mixing = nn.Parameter(torch.tensor(0.3))

    def weights(self, scores):
        plain, noise = super().weights(scores).chunk(2, dim=1)
        return torch.cat([plain - self.mixing * noise, plain], 1)


def differential_attention():
    return Block(Differential())


class Talking(Attention):
    def __init__(self):
        super().__init__(heads=4)
        self.before, self.after = nn.Parameter(torch.eye(4)), nn.Parameter(torch.eye(4))

    def weights(self, scores):
        mixed = super().weights(torch.einsum("bhts,hg->bgts", scores, self.before))
        return torch.einsum("bhts,hg->bgts", mixed, self.after)


def talking_heads():
    return Block(Talking())


class Latent(Attention):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear(DIM, 6)
        self.k, self.v = nn.Linear(6, DIM), nn.Linear(6, DIM)

    def project(self, x):
        latent = self.down(x)
        return self.split(self.q(x)), self.split(self.k(latent)), self.split(self.v(latent))


def latent_keys_and_values():
    return Block(Latent())


class WithMemory(Attention):
    def __init__(self):
        super().__init__()
        self.memory = nn.Parameter(torch.randn(2, HEADS, 3, DIM // HEADS))

    def mix(self, q, k, v):
        extra_k, extra_v = (each.expand(q.shape[0], -1, -1, -1) for each in self.memory)
        return super().mix(q, torch.cat([extra_k, k], 2), torch.cat([extra_v, v], 2))


def memory_tokens():
    return Block(WithMemory())


class Gated(Attention):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, DIM)

    def forward(self, x):
        return super().forward(x) * torch.sigmoid(self.gate(x))


def gated_attention():
    return Block(Gated())


class InBlocks(Attention):
    """Attends within blocks of 16; the length is padded to a multiple inside."""

    def mix(self, q, k, v):
        S = q.shape[2]
        q, k, v = (F.pad(each, (0, 0, 0, -S % 16)).unflatten(2, (-1, 16)) for each in (q, k, v))
        scores = (q @ k.mT) * self.head_dim**-0.5
        scores = scores.masked_fill(hidden_from(16, 16, q.device), float("-inf"))
        return (scores.softmax(-1) @ v).flatten(2, 3)[:, :, :S]


def padded_to_blocks():
    return Block(InBlocks())


class Fused(Attention):
    def mix(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def fused_attention():
    return Block(Fused())


class FusedInEvaluation(Attention):
    def mix(self, q, k, v):
        return super().mix(q, k, v) if self.training else F.scaled_dot_product_attention(q, k, v, is_causal=True)


def fused_in_evaluation_alone():
    return Block(FusedInEvaluation())


class InTiles(Attention):
    def mix(self, q, k, v):
        parts = []
        for first in range(0, q.shape[2], 48):
            last = min(first + 48, q.shape[2])
            parts.append(super().mix(q[:, :, first:last], k[:, :, :last], v[:, :, :last]))
        return torch.cat(parts, dim=2)


def tiles_of_queries():
    return Block(InTiles())
