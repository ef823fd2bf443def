"""Subjects that tests make of a module of their own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nsa_doctor.subject.contract import Subject


def small_subject(make: Callable[[], nn.Module], *, width: int, **others: Any) -> Subject:
    """A module that is made behind a seed and called on one tensor, of embeddings where nothing else is said."""

    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    given = {"input": "embeddings", "packages": ("tests",), **others}
    return Subject(name="tests", build=build, forward=lambda module, x: module(x), width=width, **given)
