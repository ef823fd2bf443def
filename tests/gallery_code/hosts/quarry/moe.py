"""Mixture of experts with a shared expert, and a capacity that depends on no later token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import QuarryConfig
from .utils import compute_dtype


class Expert(nn.Module):
    """Gated feed-forward network."""

    def __init__(self, dim: int, width: int) -> None:
        """A network of the given width."""
        super().__init__()
        self.up = nn.Linear(dim, width, bias=False)
        self.gate = nn.Linear(dim, width, bias=False)
        self.down = nn.Linear(width, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] in and out."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MixtureOfExperts(nn.Module):
    """Routes a token to a few experts; one that has taken its share of the row so far drops it.

    What an expert may have taken after t tokens of a row is an even share of t, times a factor, and some more. Dropped
    tokens still have the shared expert.
    """

    def __init__(self, cfg: QuarryConfig) -> None:
        """A mixture of `cfg.n_experts` experts."""
        super().__init__()
        self.cfg = cfg
        self.router = nn.Linear(cfg.dim, cfg.n_experts, bias=False)
        self.experts = nn.ModuleList(Expert(cfg.dim, cfg.expert_dim) for _ in range(cfg.n_experts))
        self.shared = Expert(cfg.dim, cfg.shared_dim)
        if cfg.zero_out:
            for expert in (*self.experts, self.shared):
                nn.init.zeros_(expert.down.weight)

    def _allowance(self, start: int, count: int, device: torch.device) -> Tensor:
        """How many tokens an expert may have taken after each of `count` tokens from `start` on, [count, 1]."""
        cfg = self.cfg
        seen = torch.arange(start + 1, start + count + 1, device=device)
        share = cfg.capacity_factor * cfg.experts_per_token / cfg.n_experts
        return (seen * share).floor().long().unsqueeze(1) + cfg.capacity_slack

    def route(self, x: Tensor, start: int, counts: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights of experts per token (zero where dropped), probabilities, requests, and requests so far per row."""
        cfg = self.cfg
        probs = self.router(x).to(compute_dtype(x)).softmax(-1)
        best, index = probs.topk(cfg.experts_per_token, dim=-1)
        best = best / best.sum(-1, keepdim=True)
        asked = torch.zeros_like(probs, dtype=torch.long).scatter(-1, index, 1)
        rank = asked.cumsum(1)
        if counts is not None:
            rank = rank + counts.unsqueeze(1)
        kept = (asked > 0) & (rank <= self._allowance(start, x.shape[1], x.device))
        weights = torch.zeros_like(probs).scatter(-1, index, best) * kept
        return weights, probs, asked, rank[:, -1]

    def aux_loss(self, probs: Tensor, asked: Tensor) -> Tensor:
        """How uneven experts are used: 1 when evenly."""
        cfg = self.cfg
        share = asked.to(probs.dtype).mean((0, 1)) / cfg.experts_per_token
        return cfg.n_experts * (share * probs.mean((0, 1))).sum()

    def forward(self, x: Tensor, start: int = 0, counts: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs [B, S, D], the balancing loss, and requests so far per row and expert."""
        weights, probs, asked, total = self.route(x, start, counts)
        flat = x.reshape(-1, x.shape[-1])
        flat_weights = weights.to(x.dtype).reshape(-1, self.cfg.n_experts)
        out = self.shared(flat)
        for number, expert in enumerate(self.experts):
            rows = flat_weights[:, number].nonzero().squeeze(-1)
            taken = expert(flat[rows]) * flat_weights[rows, number, None]
            out = out.index_add(0, rows, taken)
        return out.view_as(x), self.aux_loss(probs, asked), total
