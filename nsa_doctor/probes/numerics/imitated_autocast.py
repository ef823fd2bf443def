"""What autocast to bfloat16 does to a module's operations, done without autocast: how far rounding may take it.

Autocast casts the operands of products, convolutions and attention; here a dispatch mode casts them, so that code
which asks torch whether autocast is on takes its other branch.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.internal import DispatchWatcher, schema_of, tree_map
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.tensors.operands import tensors_in

HALF = torch.bfloat16
_CAST = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "linear", "matmul", "convolution")
_BACKWARD = ("convolution_backward", "linear_backward")
_ATTENTION = "_scaled_dot_product"
_KEPT = ("logsumexp", "cum_seq_q", "cum_seq_k", "philox_seed", "philox_offset")


@dataclass(frozen=True)
class AutocastPass:
    """The output [B, S, ...] of a pass and the gradients of its parameters, in float64.

    `outputs` and `handed` are what each module returned and the gradient of that, by path, in the order calls end.
    """

    output: Tensor
    gradients: dict[str, Tensor]
    outputs: dict[str, Tensor]
    handed: dict[str, Tensor]


def plain_pass(built: BuiltModule, x: Tensor) -> AutocastPass:
    """A pass without autocast."""
    return _passed(built, x, nullcontext)


def autocast_pass(built: BuiltModule, x: Tensor) -> AutocastPass:
    """A pass whose forward is under torch's autocast to bfloat16."""
    device = torch.device(built.subject.device).type
    return _passed(built, x, lambda: torch.autocast(device, dtype=HALF))


def imitated_pass(built: BuiltModule, x: Tensor) -> AutocastPass:
    """A pass whose operations are given bfloat16 as under autocast, which is off."""
    return _passed(built, x, _imitation, _Operations(is_backward=True))


def _passed(
    built: BuiltModule,
    x: Tensor,
    forward: Callable[[], AbstractContextManager[Any]],
    backward: AbstractContextManager[Any] | None = None,
) -> AutocastPass:
    module, outputs, handed = built.module, dict[str, Tensor](), dict[str, Tensor]()
    module.zero_grad(set_to_none=True)
    handles = [each.register_forward_hook(_keeping(path, outputs, handed)) for path, each in module.named_modules()]
    try:
        with torch.enable_grad():
            with forward():
                output = built(x)
            if output.requires_grad:
                cotangent = make_cotangent(output.float(), built.subject.seed).to(output.dtype)
                with backward or nullcontext():
                    ask("backward", lambda: output.backward(cotangent), module, output)
        found = {name: p.grad.to_dense().double() for name, p in module.named_parameters() if p.grad is not None}
        return AutocastPass(output.detach().double(), found, outputs, handed)
    finally:
        for handle in handles:
            handle.remove()
        module.zero_grad(set_to_none=True)


def _keeping(path: str, outputs: dict[str, Tensor], handed: dict[str, Tensor]) -> Callable[[nn.Module, Any, Any], None]:
    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            outputs.setdefault(path, output.detach().double())
            if output.requires_grad:
                output.register_hook(lambda grad: _first(handed, path, grad))

    return keep


def _first(kept: dict[str, Tensor], path: str, grad: Tensor) -> None:
    kept.setdefault(path, grad.detach().double())


@contextmanager
def _imitation() -> Iterator[None]:
    with _Convolutions(), _Operations(is_backward=False):
        yield


class _Convolutions(TorchFunctionMode):
    """Those whose arguments torch compares before it dispatches; the base class is torch's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function; convolutions are given bfloat16."""
        if getattr(func, "__name__", "").startswith("conv") and isinstance(func, BuiltinFunctionType):
            args, kwargs = tree_map(_halved, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Operations(DispatchWatcher):
    """Products and attention in bfloat16; in the backward those alone that are given any. The base class is torch's."""

    def __init__(self, *, is_backward: bool) -> None:
        super().__init__()
        self._is_backward = is_backward

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; those that autocast serves are given bfloat16."""
        name = schema_of(func).name.rpartition("::")[2]
        if "out" in kwargs:  # autocast leaves those alone
            return func(*args, **kwargs)
        if self._is_backward and not any(each.dtype == HALF for each in tensors_in(args, kwargs)):
            return func(*args, **kwargs)
        if name in _CAST or (self._is_backward and name in _BACKWARD):
            args, kwargs = tree_map(_halved, (args, kwargs))
        elif name.startswith(_ATTENTION):
            named = zip(schema_of(func).arguments, args, strict=False)
            args = tuple(given if each.name in _KEPT else _halved(given) for each, given in named)
            kwargs = {key: given if key in _KEPT else _halved(given) for key, given in kwargs.items()}
        return func(*args, **kwargs)


def _halved(leaf: Any) -> Any:
    is_cast = isinstance(leaf, Tensor) and leaf.dtype in (torch.float32, torch.float16)
    return leaf.to(HALF) if is_cast else leaf
