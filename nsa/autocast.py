"""Arithmetic that keeps its precision under autocast."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def without_autocast(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """`function` outside autocast, which would round its scores to half precision; its arguments stay as they are."""

    @functools.wraps(function)
    def outside(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        device = next(value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        if not torch.amp.is_autocast_available(device):
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return outside
