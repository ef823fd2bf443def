"""Logits in the thousands."""

from tests.gallery.hosts.gpt import GPT


class Loud(GPT):
    def forward(self, idx):
        return super().forward(idx) * 1e3


def make():
    return Loud()
