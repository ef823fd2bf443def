"""A small language model on the stack, and the loop that trains it."""

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import TrainConfig, TundraConfig
from .model import TundraStack


class TinyLM(nn.Module):
    """Embedding, stack and head."""

    def __init__(self, cfg: TundraConfig, vocab: int, dropout: float) -> None:
        """A model of `vocab` token ids."""
        super().__init__()
        self.embed = nn.Embedding(vocab, cfg.dim)
        self.stack = TundraStack(cfg)
        self.head = nn.Linear(cfg.dim, vocab, bias=False)
        self.dropout = dropout

    def forward(self, tokens: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """Logits [B, S, vocab]."""
        embedded = F.dropout(self.embed(tokens), self.dropout, training=self.training)
        return self.head(self.stack(embedded, document_ids=document_ids))


def targets_of(tokens: Tensor, ignore: int, document_ids: Tensor | None = None) -> Tensor:
    """The token after each of all but the last ones, [B, S - 1]; `ignore` where it begins another document."""
    wanted = tokens[:, 1:]
    if document_ids is None:
        return wanted
    return wanted.masked_fill(document_ids[:, 1:] != document_ids[:, :-1], ignore)


def loss_sum(logits: Tensor, targets: Tensor, ignore: int) -> Tensor:
    """Cross entropy of all targets that count, summed in float32 at least."""
    predicted = logits[:, :-1].flatten(0, 1)
    wide = predicted.to(torch.promote_types(predicted.dtype, torch.float32))
    return F.cross_entropy(wide, targets.flatten(), ignore_index=ignore, reduction="sum")


def make_optimizer(model: nn.Module, cfg: TrainConfig) -> torch.optim.Optimizer:
    """AdamW; matrices decay, embeddings and everything else do not."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() >= 2 and id(p) not in tables]
    vectors = [p for p in trained if p.dim() < 2 or id(p) in tables]
    decayed = {"params": matrices, "weight_decay": cfg.weight_decay}
    others = {"params": vectors, "weight_decay": 0.0}
    return torch.optim.AdamW([decayed, others], lr=cfg.lr, betas=(0.9, 0.95))


def rate(step: int, cfg: TrainConfig) -> float:
    """The learning rate of a step, from 0 on, as a share of the highest: up in a line, down along a cosine."""
    if step < cfg.warmup:
        return (step + 1) / cfg.warmup
    done = min(1.0, (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup))
    return cfg.floor + (1 - cfg.floor) * 0.5 * (1 + math.cos(math.pi * done))


class Trainer:
    """Takes optimizer steps of several micro-batches."""

    def __init__(self, model: TinyLM, cfg: TrainConfig) -> None:
        """A trainer at step 0."""
        self.model, self.cfg = model, cfg
        self.optimizer = make_optimizer(model, cfg)
        self.done = 0

    def step(self, batches: Sequence[Tensor], documents: Sequence[Tensor] | None = None) -> float:
        """One optimizer step; every target of the micro-batches counts alike. Their mean loss."""
        cfg = self.cfg
        for group in self.optimizer.param_groups:
            group["lr"] = cfg.lr * rate(self.done, cfg)
        self.optimizer.zero_grad(set_to_none=True)
        packed = list(documents) if documents is not None else [None] * len(batches)
        targets = [targets_of(tokens, cfg.ignore, ids) for tokens, ids in zip(batches, packed, strict=True)]
        counted = max(1, sum(int((wanted != cfg.ignore).sum()) for wanted in targets))
        total = 0.0
        for tokens, ids, wanted in zip(batches, packed, targets, strict=True):
            loss = loss_sum(self.model(tokens, ids), wanted, cfg.ignore) / counted
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(self.model.parameters(), cfg.clip)
        self.optimizer.step()
        self.done += 1
        return total

    def snapshot(self) -> dict[str, Any]:
        """All that a resumed run needs to go on as this one would."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "done": self.done,
            "rng": torch.get_rng_state(),
        }
        return copy.deepcopy(state)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a snapshot, which stays as it is."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.done = state["done"]
        torch.set_rng_state(state["rng"])


@torch.no_grad()
def evaluate(model: TinyLM, batches: Iterable[Tensor], ignore: int = -100) -> float:
    """Mean loss of the targets of held-out batches; the model's mode is afterwards what it was."""
    was_training = model.training
    model.eval()
    total, counted = 0.0, 0
    for tokens in batches:
        targets = targets_of(tokens, ignore)
        total += float(loss_sum(model(tokens), targets, ignore))
        counted += int((targets != ignore).sum())
    model.train(was_training)
    return total / max(1, counted)


def repeating_batch(cfg: TrainConfig, generator: torch.Generator) -> Tensor:
    """Rows that repeat a random piece, so that there is something to learn."""
    period = max(2, cfg.length // 4)
    piece = torch.randint(cfg.vocab, (cfg.batch, period), generator=generator)
    return piece.repeat(1, cfg.length // period + 1)[:, : cfg.length]


def train(model: TinyLM, cfg: TrainConfig, seed: int = 0) -> list[float]:
    """Losses of `cfg.steps` steps on made-up data."""
    generator = torch.Generator().manual_seed(seed)
    trainer = Trainer(model.train(), cfg)
    return [trainer.step([repeating_batch(cfg, generator) for _ in range(cfg.accumulate)]) for _ in range(cfg.steps)]
