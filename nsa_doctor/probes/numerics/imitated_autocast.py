"""What autocast to half precision does to a module's operations, done without autocast: how far rounding may take it.

Autocast casts the operands of products, convolutions and attention; here a dispatch mode casts them, so that code
which asks torch whether autocast is on takes its other branch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.probes.internal import DispatchWatcher, schema_of, tree_map
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.rounded_pass import RoundedPass, passed
from nsa_doctor.probes.tensors.operands import tensors_in

_CAST = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "linear", "matmul", "convolution")
_BACKWARD = ("convolution_backward", "linear_backward")
_ATTENTION = "_scaled_dot_product"
_KEPT = ("logsumexp", "cum_seq_q", "cum_seq_k", "philox_seed", "philox_offset")
_CASTABLE = (torch.float32, torch.float16, torch.bfloat16)


def autocast_pass(built: BuiltModule, x: Tensor, half: torch.dtype) -> RoundedPass:
    """A pass whose forward is under torch's autocast to `half`."""
    device = torch.device(built.subject.device).type
    return passed(built, x, lambda: torch.autocast(device, dtype=half))


def imitated_pass(built: BuiltModule, x: Tensor, half: torch.dtype) -> RoundedPass:
    """A pass whose operations are given `half` as under autocast, which is off."""
    return passed(built, x, lambda: _imitation(half), lambda: _Operations(half, is_backward=True))


@contextmanager
def _imitation(half: torch.dtype) -> Iterator[None]:
    with _Functions(half), _Operations(half, is_backward=False):
        yield


class _Functions(TorchFunctionMode):
    """Those whose arguments torch compares before it dispatches, or adds up itself; the base class is torch's."""

    def __init__(self, half: torch.dtype) -> None:
        super().__init__()
        self._half = half

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function; convolutions and linear maps are given half precision."""
        if getattr(func, "__name__", "").startswith(("conv", "linear")) and isinstance(func, BuiltinFunctionType):
            args, kwargs = tree_map(lambda leaf: _halved(leaf, self._half), (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Operations(DispatchWatcher):
    """Products and attention in half precision; in the backward those alone that are given any. The base is torch's."""

    def __init__(self, half: torch.dtype, *, is_backward: bool) -> None:
        super().__init__()
        self._half = half
        self._is_backward = is_backward

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; those that autocast serves are given half precision."""
        name = schema_of(func).name.rpartition("::")[2]
        if "out" in kwargs:  # autocast leaves those alone
            return func(*args, **kwargs)
        if self._is_backward and not any(each.dtype == self._half for each in tensors_in(args, kwargs)):
            return func(*args, **kwargs)
        if name in _CAST or (self._is_backward and name in _BACKWARD):
            args, kwargs = tree_map(self._halved, (args, kwargs))
        elif name.startswith(_ATTENTION):
            named = zip(schema_of(func).arguments, args, strict=False)
            args = tuple(given if each.name in _KEPT else self._halved(given) for each, given in named)
            kwargs = {key: given if key in _KEPT else self._halved(given) for key, given in kwargs.items()}
        return func(*args, **kwargs)

    def _halved(self, leaf: Any) -> Any:
        return _halved(leaf, self._half)


def _halved(leaf: Any, half: torch.dtype) -> Any:
    return leaf.to(half) if isinstance(leaf, Tensor) and leaf.dtype in _CASTABLE else leaf
