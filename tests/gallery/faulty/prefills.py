"""Decoders that take in prompts by a flag of the environment, and some that do not follow it."""

import os
from dataclasses import replace

import torch
from torch import nn

from nsa_doctor.subject.contract import Subject

FLAG = "NSA_PREFILL_BATCHED"  # here


class Sum(nn.Module):
    """Each token and all before it."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x, before=0):
        y = self.mix(x).cumsum(1) + before
        return y, y[:, -1:]


def _at_once(module, x):
    return module(x)


def _one_by_one(module, x):
    parts, cache = [], 0
    for token in x.split(1, dim=1):
        y, cache = module(token, cache)
        parts.append(y)
    return torch.cat(parts, dim=1), cache


def _subject(prefill):
    return Subject(
        name="sum",
        build=lambda seed: Sum(),
        forward=lambda module, x: module(x)[0],
        prefill=prefill,
        step=lambda module, x, cache: module(x, cache),
        packages=("faulty",),
        input="embeddings",
        width=8,
    )


def _by_the_flag(under_0, otherwise):
    def prefill(module, x):
        return under_0(module, x) if os.environ.get(FLAG) == "0" else otherwise(module, x)

    return prefill


def obeys():
    return _subject(_by_the_flag(_one_by_one, _at_once))


def opposes():
    return _subject(_by_the_flag(_at_once, _one_by_one))


def ignores():
    return _subject(_at_once)


def knows_no_flag():
    return replace(_subject(_at_once), packages=("collections",))
