"""A training loop: `nsa-doctor run --subject training_loop:Model --train training_loop:begin`.

Examined are how micro-batches weigh in loss and gradient, what an evaluation leaves behind, and whether a loop that is
restored from a snapshot goes on as the one that was never stopped. A batch is what the module takes, ids [B, S].
"""

from typing import Any

import torch
from torch import Tensor, nn
from training_step import Model as Model

from nsa_doctor import TrainingLoop


class Trainer:
    """Descends the mean over all tokens of a step, whichever micro-batch they are in."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 100))

    def loss_sum(self, ids: Tensor) -> Tensor:
        """The loss of the next token, summed over all of them."""
        logits = self.model(ids[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")

    def step(self, batches: list[Tensor]) -> float:
        """One step of the optimizer; the mean loss."""
        self.model.train()
        self.optimizer.zero_grad()
        total, num_tokens = 0.0, sum(ids[:, 1:].numel() for ids in batches)
        for ids in batches:
            loss = self.loss_sum(ids) / num_tokens
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return total

    @torch.no_grad()
    def evaluate(self, batches: list[Tensor]) -> float:
        """The mean loss of held-out batches."""
        self.model.eval()
        return sum(self.loss_sum(ids).item() for ids in batches) / sum(ids[:, 1:].numel() for ids in batches)

    def snapshot(self) -> dict[str, Any]:
        """What a file holds, so that the run can go on."""
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        return {name: part.state_dict() for name, part in parts.items()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from there."""
        for name, state in snapshot.items():
            getattr(self, name).load_state_dict(state)


def begin(model: nn.Module) -> TrainingLoop:
    """The loop around a model before its first step."""
    trainer = Trainer(model)
    return TrainingLoop(
        step=trainer.step, evaluate=trainer.evaluate, snapshot=trainer.snapshot, restore=trainer.restore
    )
