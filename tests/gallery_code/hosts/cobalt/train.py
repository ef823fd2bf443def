"""Training of the language model."""

import copy
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .config import TrainConfig
from .model import CobaltLM


def learning_rate(step: int, cfg: TrainConfig) -> float:
    """Of step 0, 1, ...: linear warm-up, then a cosine down to min_lr_ratio."""
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / cfg.warmup
    progress = min(1.0, (step - cfg.warmup) / max(1, cfg.total_steps - cfg.warmup))
    low = cfg.lr * cfg.min_lr_ratio
    return low + (cfg.lr - low) * 0.5 * (1 + math.cos(math.pi * progress))


def decay_groups(model: nn.Module, cfg: TrainConfig) -> list[dict[str, Any]]:
    """Weights of linear layers decay; embeddings, norms, biases and places do not."""
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    params = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in params if id(p) in linear], "weight_decay": cfg.weight_decay},
        {"params": [p for p in params if id(p) not in linear], "weight_decay": 0.0},
    ]


class Ema:
    """Exponential moving averages of the parameters."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            self.values[name].lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange the model's parameters and the averages; the second time puts them back."""
        for name, p in model.named_parameters():
            kept = p.detach().clone()
            p.copy_(self.values[name])
            self.values[name] = kept


class Trainer:
    def __init__(self, model: CobaltLM, cfg: TrainConfig | None = None):
        self.model = model
        self.cfg = cfg or TrainConfig()
        self.optimizer = torch.optim.AdamW(
            decay_groups(model, self.cfg), lr=self.cfg.lr, betas=self.cfg.betas, eps=self.cfg.eps
        )
        self.ema = Ema(model, self.cfg.ema_decay) if self.cfg.ema_decay else None
        self.done = 0
        self.history: list[dict[str, float]] = []

    def step(self, batches: Sequence[Tensor]) -> float:
        """One step of the optimizer over micro-batches of ids [B, S]; every token weighs the same."""
        model, cfg = self.model, self.cfg
        model.train()
        self.optimizer.zero_grad(set_to_none=True)
        wanted = [model.targets(ids) for ids in batches]
        tokens = max(1, sum(int((w != cfg.ignore_index).sum()) for w in wanted))
        total = 0.0
        for ids, target in zip(batches, wanted, strict=True):
            loss = model.loss(model(ids).logits[:, :-1], target, reduction="sum") / tokens
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        rate = learning_rate(self.done, cfg)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update(model)
        self.done += 1
        self.history.append({"loss": total, "norm": float(norm), "lr": rate})
        return total

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Mean loss of a token, of the averages where there are any."""
        model, was_training = self.model, self.model.training
        model.eval()
        if self.ema is not None:
            self.ema.swap(model)
        try:
            total, tokens = 0.0, 0
            for ids in batches:
                target = model.targets(ids)
                total += model.loss(model(ids).logits[:, :-1], target, reduction="sum").item()
                tokens += int((target != self.cfg.ignore_index).sum())
        finally:
            if self.ema is not None:
                self.ema.swap(model)
            model.train(was_training)
        return total / max(1, tokens)

    def snapshot(self) -> dict[str, Any]:
        """All that a run needs to go on, as copies."""
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "ema": None if self.ema is None else self.ema.values,
                "done": self.done,
                "rng": torch.get_rng_state(),
            }
        )

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        if self.ema is not None and state["ema"] is not None:
            self.ema.values = {name: value.clone() for name, value in state["ema"].items()}
        self.done = state["done"]
        torch.set_rng_state(state["rng"])

    def save(self, path: str | Path) -> None:
        torch.save(self.snapshot(), path)

    def load(self, path: str | Path) -> None:
        self.restore(torch.load(path, weights_only=True))

    def fit(self, data: Sequence[Tensor], steps: int, accumulate: int = 1, eval_data: Sequence[Tensor] = ()) -> float:
        """`steps` steps over batches taken in turn; returns the last loss, of evaluation where there is data for it."""
        loss = math.nan
        for _ in range(steps):
            first = self.done * accumulate
            loss = self.step([data[(first + i) % len(data)] for i in range(accumulate)])
        return self.evaluate(eval_data) if eval_data else loss
