"""Keeps what runs in float64 there: casts to narrower types widen in its region."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.probes.internal import tree_map

_NARROW = (torch.float32, torch.bfloat16, torch.float16)
_CASTS = ("float", "bfloat16", "half")


class Widened(TorchFunctionMode):
    """float64 wherever torch is asked for float32 or half precision; the base class is torch's."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one call, with float64 for every narrower type it names."""
        if getattr(func, "__name__", "") in _CASTS and args and isinstance(args[0], Tensor):
            return args[0].double()
        args, kwargs = tree_map(_wide, (args, kwargs or {}))
        return func(*args, **kwargs)


def _wide(leaf: Any) -> Any:
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in _NARROW else leaf
