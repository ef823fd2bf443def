"""A GPT-2 whose head is its embedding."""

from tests.gallery.hosts.gpt import GPT


def make():
    return GPT()
