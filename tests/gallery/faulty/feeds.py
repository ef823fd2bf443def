"""Loaders that do to their process what a loader should not; the line at fault is marked `# here`."""

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np


def good() -> Iterator[Any]:
    print("a loader that talks on standard output")
    sys.stdout.flush()
    generator = np.random.default_rng(0)
    for _ in range(40):
        tokens = generator.integers(0, 50, (4, 17))
        yield tokens[:, :-1], tokens[:, 1:]


def kills() -> Iterator[Any]:
    yield next(good())
    ctypes.string_at(0)  # here


def leaves() -> Iterator[Any]:
    yield next(good())
    os._exit(0)  # here


def holds_the_interpreter() -> Iterator[Any]:
    yield next(good())
    re.match(r"(a+)+$", "a" * 60 + "b")  # here
