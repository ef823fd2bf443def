"""The head never learns: its weight is tied anew at every step by a fresh Parameter the optimizer does not know."""

from torch import nn

from tests.gallery.hosts.llama import Llama, next_token_loss, subject

MODULE = ("", "head")
CODES = {"GRD201", "GRD203", "GRD205"}


def train_step(model, optimizer, ids):
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())  # here
    optimizer.zero_grad()
    loss = next_token_loss(model, ids)
    loss.backward()
    optimizer.step()
    return loss.detach()


def make():
    return subject(Llama, __name__, loss=next_token_loss, train_step=train_step)
