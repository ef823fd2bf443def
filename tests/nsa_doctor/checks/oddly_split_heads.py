"""Heads that are split and merged in an odd way, or not for each other."""

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from tests.nsa_doctor.checks.inverse_pairs import DIM, HEADS, Heads


class KeysTurned(Heads):
    """Keys are split for a product without a transpose, as GPT-2's are."""

    def split_heads(self, x: Tensor, k: bool = False) -> Tensor:
        x = x.view(*x.shape[:2], HEADS, -1)
        return x.permute(0, 2, 3, 1) if k else x.permute(0, 2, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        k = self.split_heads(x, k=True)
        return self.merge_heads((self.split_heads(x) @ k).softmax(-1) @ self.split_heads(x))


class Fused(nn.Module):
    """Queries, keys and values in one, as Bloom's are."""

    def split_heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.repeat(1, 1, 3).view(*x.shape[:2], HEADS, 3, -1).unbind(3)

    def merge_heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split_heads(x)
        return self.merge_heads(q * k.sigmoid() + v)


class ProjectedMerge(Heads):
    """A merge with the output projection in it, and a split with a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(DIM, DIM)

    def split_heads(self, x: Tensor) -> Tensor:
        return super().split_heads(x) / math.sqrt(8)

    def merge_heads(self, x: Tensor) -> Tensor:
        return self.out(super().merge_heads(x))


class NormedSplit(Heads):
    """A split that normalises queries and keys."""

    def split_heads(self, x: Tensor) -> Tensor:
        return functional.normalize(super().split_heads(x), dim=-1)


class MeanOfHeads(nn.Module):
    """Copies for heads, whose mean is taken."""

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(-1, HEADS, -1, -1)

    def merge_heads(self, x: Tensor) -> Tensor:
        return x.mean(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.merge_heads(self.split_heads(x).sin())


class Shaped(nn.Module):
    """Functions within the forward, as T5's are."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]

        def shape(y: Tensor) -> Tensor:
            return y.view(rows, -1, HEADS, 8).transpose(1, 2)

        def unshape(y: Tensor) -> Tensor:
            return y.transpose(1, 2).contiguous().view(rows, -1, 32)

        return unshape(shape(x).sin())


HEALTHY: dict[str, Any] = {
    "heads": Heads,
    "keys-turned": KeysTurned,
    "fused": Fused,
    "projected-merge": ProjectedMerge,
    "normed-split": NormedSplit,
    "mean-of-heads": MeanOfHeads,
    "nested": Shaped,
}
