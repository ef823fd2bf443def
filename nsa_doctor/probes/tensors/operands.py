"""The tensors an operation was given and gave, found fast: this runs once per operation."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def tensors_in(*values: Any) -> list[Tensor]:
    """Every strided tensor among the values, in lists, tuples and dictionaries too; one given twice comes twice."""
    found: list[Tensor] = []
    _collect(values, found)
    return found


_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _collect(values: Iterable[Any], found: list[Tensor]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            if type(value) in _PLAIN and value.layout == torch.strided and value.device.type != "meta":
                found.append(value)
        elif isinstance(value, (list, tuple)):
            _collect(value, found)
        elif isinstance(value, dict):
            _collect(value.values(), found)
