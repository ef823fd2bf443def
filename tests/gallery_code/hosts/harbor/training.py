"""A training step: optimizer, schedule, accumulation, clipping, snapshots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TrainConfig:
    """Rates and limits."""

    learning_rate: float = 3e-3
    min_rate_share: float = 0.1
    warmup_steps: int = 10
    total_steps: int = 100
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0
    balance_weight: float = 0.01


@dataclass
class Batch:
    """Embeddings, what is to be predicted, and which tokens count."""

    x: Tensor
    target: Tensor
    counted: Tensor


def rate_at(step: int, config: TrainConfig) -> float:
    """Linear warm-up from the first step on, then half a cosine down to a share."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.total_steps - config.warmup_steps)
    wave = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return config.learning_rate * (config.min_rate_share + (1 - config.min_rate_share) * wave)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas)


class Trainer:
    """Holds what changes from step to step."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.model = model
        self.config = config
        self.optimizer = make_optimizer(model, config)
        self.step_number = 0
        self.best_loss = math.inf
        self.best_state: dict[str, Tensor] = {}

    def loss_sum(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sum of squared errors over the tokens that count, and the balance loss."""
        out, balance = self.model(batch.x, return_balance=True)
        error = (out - batch.target).square().mean(-1)
        return (error * batch.counted).sum(), balance

    def train_step(self, batches: Sequence[Batch]) -> dict[str, float]:
        """One step on several micro-batches; every token that counts weighs the same, wherever it is."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        tokens = sum(float(batch.counted.sum()) for batch in batches)
        if tokens == 0:
            raise ValueError("no token of the step counts")
        reported = 0.0
        for batch in batches:
            error, balance = self.loss_sum(batch)
            loss = error / tokens + self.config.balance_weight * balance / len(batches)
            loss.backward()
            reported += float(error.detach()) / tokens
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        if not torch.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            return {"loss": reported, "norm": float(norm), "skipped": 1.0}
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(self.step_number, self.config)
        self.optimizer.step()
        self.step_number += 1
        return {"loss": reported, "norm": float(norm), "skipped": 0.0}

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Batch]) -> float:
        """Mean error in eval mode; the mode is put back. Remembers the best weights."""
        was_training = self.model.training
        self.model.eval()
        total, tokens = 0.0, 0.0
        for batch in batches:
            total += float(self.loss_sum(batch)[0])
            tokens += float(batch.counted.sum())
        self.model.train(was_training)
        loss = total / max(tokens, 1.0)
        if loss < self.best_loss:
            self.best_loss = loss
            self.best_state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        return loss

    def snapshot(self) -> dict[str, Any]:
        """Everything that going on as if nothing had happened needs."""
        return {
            "model": {name: value.detach().clone() for name, value in self.model.state_dict().items()},
            "optimizer": _copy(self.optimizer.state_dict()),
            "step": self.step_number,
            "best_loss": self.best_loss,
            "best_state": dict(self.best_state),
            "rng": torch.get_rng_state(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(_copy(snapshot["optimizer"]))
        self.step_number = snapshot["step"]
        self.best_loss = snapshot["best_loss"]
        self.best_state = dict(snapshot["best_state"])
        torch.set_rng_state(snapshot["rng"])


def _copy(value: Any) -> Any:
    """A deep copy of nested dictionaries and lists with tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copy(item) for item in value)
    return value
