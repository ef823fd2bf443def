"""How much each branch counts, per token and head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .utils import compute_dtype

BRANCHES = ("compressed", "selected", "sliding")


class BranchGate(nn.Module):
    """One sigmoid per branch and head from the layer's input."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.project = nn.Linear(dim, n_heads * len(BRANCHES))
        nn.init.normal_(self.project.weight, std=dim**-0.5)
        nn.init.zeros_(self.project.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] to [B, T, H, 3]."""
        logits = self.project(x)
        gates = torch.sigmoid(logits.to(compute_dtype(logits.dtype)))
        gates = gates.to(x.dtype)
        return gates.unflatten(-1, (self.n_heads, len(BRANCHES)))


def mix(branches: tuple[Tensor, Tensor, Tensor], gates: Tensor) -> Tensor:
    """Weigh three outputs [B, T, H, D] by their gates [B, T, H, 3]."""
    compressed, selected, sliding = branches
    out = compressed * gates[..., 0:1]
    out = out + selected * gates[..., 1:2]
    return out + sliding * gates[..., 2:3]
