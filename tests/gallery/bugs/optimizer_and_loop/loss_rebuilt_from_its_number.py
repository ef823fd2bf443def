"""Nothing learns: the loss is averaged as numbers and made a new tensor, so backward reaches no parameter."""

import torch

from tests.gallery.hosts.llama import Llama, next_token_loss, subject

MODULE = ""
CODES = {"GRD201", "GRD202", "GRD205"}


def train_step(model, optimizer, ids):
    optimizer.zero_grad()
    parts = [next_token_loss(model, row[None]).item() for row in ids]
    loss = torch.tensor(sum(parts) / len(parts), requires_grad=True)  # here
    loss.backward()
    optimizer.step()
    return loss.detach()


def make():
    return subject(Llama, __name__, train_step=train_step)
