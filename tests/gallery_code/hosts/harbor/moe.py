"""A small mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import HarborConfig
from .utils import compute_dtype


class Expert(nn.Module):
    """Gated feed-forward part."""

    def __init__(self, config: HarborConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.expert_dim, bias=False)
        self.up = nn.Linear(config.dim, config.expert_dim, bias=False)
        self.down = nn.Linear(config.expert_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MixtureOfExperts(nn.Module):
    """Each token goes to the experts that its router likes best; none is dropped."""

    def __init__(self, config: HarborConfig) -> None:
        super().__init__()
        self.top = config.experts_per_token
        self.router = nn.Linear(config.dim, config.n_experts, bias=False)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.n_experts))

    def route(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights [N, top] that sum to one, numbers of experts [N, top], all probabilities [N, E]."""
        logits = self.router(flat)
        probs = logits.to(compute_dtype(logits.dtype)).softmax(-1)
        weights, chosen = probs.topk(self.top, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(flat.dtype), chosen, probs

    def balance_loss(self, probs: Tensor, chosen: Tensor) -> Tensor:
        """One when all experts get the same share, more otherwise."""
        experts = probs.shape[-1]
        share = F.one_hot(chosen, experts).to(probs.dtype).sum(1).mean(0) / self.top
        return experts * (share * probs.mean(0)).sum()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, dim] to the same, and the loss that balances experts."""
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen, probs = self.route(flat)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == number)
            if rows.numel():
                out = out.index_add(0, rows, expert(flat[rows]) * weights[rows, slot].unsqueeze(-1))
        return out.view(x.shape), self.balance_loss(probs, chosen)
