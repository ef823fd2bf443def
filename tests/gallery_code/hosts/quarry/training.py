"""A small language model on the stack, and the loop that trains it."""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import QuarryConfig, TrainConfig
from .model import QuarryStack


class TinyLM(nn.Module):
    """Embedding, stack and head."""

    def __init__(self, cfg: QuarryConfig, vocab: int) -> None:
        """A model of `vocab` token ids."""
        super().__init__()
        self.embed = nn.Embedding(vocab, cfg.dim)
        self.stack = QuarryStack(cfg)
        self.head = nn.Linear(cfg.dim, vocab, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, S, vocab] and the balancing loss."""
        hidden, aux = self.stack.forward_with_aux(self.drop(self.embed(tokens)))
        return self.head(hidden), aux


def next_token_loss(logits: Tensor, tokens: Tensor, ignore: int) -> Tensor:
    """Cross entropy of every token given those before it."""
    predicted, wanted = logits[:, :-1], tokens[:, 1:]
    return F.cross_entropy(predicted.flatten(0, 1), wanted.flatten(), ignore_index=ignore)


def make_optimizer(model: nn.Module, cfg: TrainConfig) -> torch.optim.Optimizer:
    """AdamW; matrices decay, everything else does not."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": cfg.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=(0.9, 0.95))


def rate(step: int, cfg: TrainConfig) -> float:
    """The learning rate of a step, from 0 on, as a share of the highest: up in a line, down along a cosine."""
    if step < cfg.warmup:
        return (step + 1) / cfg.warmup
    done = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done)))


class Trainer:
    """Takes optimizer steps of several micro-batches."""

    def __init__(self, model: TinyLM, cfg: TrainConfig) -> None:
        """A trainer at step 0."""
        self.model, self.cfg = model, cfg
        self.optimizer = make_optimizer(model, cfg)
        self.done = 0

    def loss(self, tokens: Tensor) -> Tensor:
        """What a micro-batch is trained on."""
        logits, aux = self.model(tokens)
        return next_token_loss(logits, tokens, self.cfg.ignore) + self.cfg.aux_weight * aux

    def step(self, batches: list[Tensor]) -> float:
        """One optimizer step on micro-batches of one size; their mean loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.cfg.lr * rate(self.done, self.cfg)
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for tokens in batches:
            loss = self.loss(tokens)
            (loss / len(batches)).backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.optimizer.step()
        self.done += 1
        return total / len(batches)


@torch.no_grad()
def evaluate(model: TinyLM, batches: Iterable[Tensor], ignore: int = -100) -> float:
    """Mean loss on held-out batches; the model's mode is afterwards what it was."""
    was_training = model.training
    model.eval()
    losses = [float(next_token_loss(model(tokens)[0], tokens, ignore)) for tokens in batches]
    model.train(was_training)
    return sum(losses) / max(1, len(losses))


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
