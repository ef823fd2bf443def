"""A value head waits, frozen, for another training stage; this forward does not call it."""

from torch import nn

from tests.gallery.hosts.gpt import GPT, N_EMBD


class WithValueHead(GPT):
    def __init__(self):
        super().__init__()
        self.value_head = nn.Sequential(nn.Linear(N_EMBD, N_EMBD), nn.Tanh(), nn.Linear(N_EMBD, 1))
        self.value_head.requires_grad_(False)


def make():
    return WithValueHead()
