"""Arithmetic that keeps its precision under autocast."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def without_autocast(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """`function` outside autocast, which would round its scores to half precision; its arguments stay as they are."""

    @functools.wraps(function)
    def outside(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        device = next(value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        with outside_autocast(device):
            return function(*args, **kwargs)

    return outside


def outside_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A region in which autocast rounds nothing on a device."""
    if not _has_autocast(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_autocast(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind)
