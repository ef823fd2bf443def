"""The loss rises: the log-likelihood itself is minimised, a minus is missing."""

import torch

from tests.gallery.hosts.llama import Llama, subject

MODULE = ""
CODES = {"GRD206", "GRD207"}


def objective(model, ids):
    log_p = torch.log_softmax(model(ids[:, :-1]), dim=-1)
    return log_p.gather(-1, ids[:, 1:, None]).mean()  # here


def train_step(model, optimizer, ids):
    optimizer.zero_grad()
    loss = objective(model, ids)
    loss.backward()
    optimizer.step()
    return -loss.detach()


def make():
    return subject(Llama, __name__, train_step=train_step)
