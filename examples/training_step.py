"""A training step: `nsa-doctor run --subject training_step:Model --train training_step:step`.

Examined are its targets, the gradients that the optimizer gets, and whether they move what they should. `batch` is what
the module takes, here token ids [B, S].
"""

import torch
from torch import nn

VOCABULARY = 64


class Model(nn.Module):
    """A causal language model: ids [B, S] in, logits [B, S, vocabulary] out."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, dim), nn.Linear(dim, VOCABULARY)
        self.mix = nn.GRU(dim, dim, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(ids))[0])


def step(module: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    """One step; the loss that it returns is that of the next token."""
    optimizer.zero_grad()
    logits = module(batch[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    return loss.detach()
