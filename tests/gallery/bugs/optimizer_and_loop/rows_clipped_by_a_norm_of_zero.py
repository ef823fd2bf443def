"""Parameters become NaN at the first step: each row's gradient is divided by its norm, zero for tokens not seen."""

import torch

from tests.gallery.hosts.llama import Llama, next_token_loss, subject

MODULE = ("", "embed")
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105", "NAN108"}


def train_step(model, optimizer, ids):
    optimizer.zero_grad()
    loss = next_token_loss(model, ids)
    loss.backward()
    for p in model.parameters():
        if p.dim() == 2:
            norm = p.grad.norm(dim=1, keepdim=True)
            limit = 0.01 * p.detach().norm(dim=1, keepdim=True)
            p.grad.mul_(torch.minimum(limit, norm) / norm)  # here
    optimizer.step()
    return loss.detach()


def make():
    return subject(Llama, __name__, loss=next_token_loss, train_step=train_step)
