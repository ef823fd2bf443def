"""The loss asks for the token that was just read, not for the next one: targets are the inputs."""

import torch.nn.functional as F

from tests.gallery.hosts.gpt import GPT, VOCAB
from tests.gallery.hosts.llama import subject

MODULE = ""
CODES = {"GRD207"}


def loss(model, ids):
    logits = model(ids)
    return F.cross_entropy(logits.view(-1, logits.size(-1)), ids.view(-1))  # here


def make():
    return subject(GPT, __name__, width=VOCAB, loss=loss, prefill=None, step=None)
