"""A model kept in bfloat16 throughout."""

import torch

from tests.gallery.hosts.llama import Llama


def make():
    return Llama().to(torch.bfloat16)
