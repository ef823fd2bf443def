"""Autocast on a CPU as on a GPU: where code turns it off for CUDA, it is off."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def autocast_to(half: torch.dtype, device: str, *, enabled: bool = True) -> Iterator[None]:
    """Autocast to `half`, until the region ends.

    On a CPU `autocast("cuda", enabled=False)`, as in code that computes angles in float32, turns off that of the CPU.
    """
    with torch.autocast(device, dtype=half, enabled=enabled), ExitStack() as stack:
        if enabled and device == "cpu":
            stack.enter_context(_off_where_off_for_cuda())
        yield


@contextmanager
def _off_where_off_for_cuda() -> Iterator[None]:
    """A region of CUDA's holds for the CPU too; without a GPU torch has it turned off whatever it was asked for."""
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__
    inner: list[tuple[torch.autocast, torch.autocast]] = []

    def entered(region: torch.autocast) -> Any:
        answer = enter(region)
        if region.device == "cuda":
            off = torch.autocast("cpu", enabled=False)
            enter(off)
            inner.append((region, off))
        return answer

    def left(region: torch.autocast, *error: Any) -> Any:
        if inner and inner[-1][0] is region:
            leave(inner.pop()[1], *error)
        return leave(region, *error)

    with patch.multiple(torch.autocast, __enter__=entered, __exit__=left):
        yield
