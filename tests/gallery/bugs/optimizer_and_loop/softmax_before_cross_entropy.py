"""The loss cannot fall below log(V) - 1 or so: probabilities go into cross_entropy, which takes logits."""

import torch.nn.functional as F

from tests.gallery.hosts.llama import Llama, subject

MODULE = ""
CODES = {"GRD207"}


def loss(model, ids):
    probs = F.softmax(model(ids[:, :-1]), dim=-1)
    return F.cross_entropy(probs.transpose(1, 2), ids[:, 1:])  # here


def train_step(model, optimizer, ids):
    optimizer.zero_grad()
    value = loss(model, ids)
    value.backward()
    optimizer.step()
    return value.detach()


def make():
    return subject(Llama, __name__, loss=loss, train_step=train_step)
