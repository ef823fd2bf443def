"""A third of everything is dropped in training, nothing in eval mode."""

from torch import nn

from tests.gallery.hosts.gpt import GPT


def make():
    model = GPT()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.35
    return model
