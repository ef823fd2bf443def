"""Every case of this gallery by name: `tests.gallery_functions.cases:NAME` is its function, imported from a file."""

from collections.abc import Callable

from tests.gallery_functions.healthy import edited as healthy_edits
from tests.gallery_functions.healthy import own as healthy_files
from tests.gallery_functions.planting import Case, Healthy, Wrong, load
from tests.gallery_functions.wrong import (
    alone,
    banded,
    capped,
    checkpointed,
    chunks,
    decode,
    flex,
    packed,
    saved,
    split_k,
    tiled,
    two_pass,
    varlen,
)

_EDITED = (tiled, two_pass, varlen, decode, banded, packed, capped, flex, checkpointed, saved, split_k, chunks)
WRONG: list[Wrong] = [case for module in (*_EDITED, alone) for case in module.WRONG]
HEALTHY: list[Healthy] = [*healthy_edits.HEALTHY, *healthy_files.HEALTHY]
BY_NAME: dict[str, Case] = {case.name: case for case in (*WRONG, *HEALTHY)}


def __getattr__(name: str) -> Callable:
    if name not in BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(BY_NAME[name])
