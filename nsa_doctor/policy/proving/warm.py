"""Children that need not import torch: forks of this process once it has."""

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.internal import COMPILER
from nsa_doctor.isolation.openmp import keep_to_one_thread
from nsa_doctor.isolation.start import Children

_IMPORTED = ("nsa_doctor.worker.main", "nsa_doctor.worker.handlers", COMPILER)  # a first step imports the last


@contextmanager
def warm_children(device: str) -> Iterator[None]:
    """In this region children are forked where they may be: what they share is imported once, and no subject is."""
    before = Children.are_forked
    Children.are_forked = before or (device == "cpu" and _can_be_forked())
    try:
        yield
    finally:
        Children.are_forked = before


def _can_be_forked() -> bool:
    keep_to_one_thread()
    imported = attempt(lambda: [importlib.import_module(name) for name in _IMPORTED])
    if isinstance(imported, Caught):
        return False
    gc.freeze()  # no collector of theirs looks through what is imported
    can_be = importlib.import_module("nsa_doctor.probes.model.state").can_be_forked
    return bool(can_be())
