"""One pass forward and backward, whose output and gradients are held against those of the same operations rounded."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.inputs import make_cotangent


@dataclass(frozen=True)
class RoundedPass:
    """The output [B, S, ...] of a pass and the gradients of its parameters, in float64.

    `outputs` and `handed` are what each module returned and the gradient of that, by path, in the order calls end.
    """

    output: Tensor
    gradients: dict[str, Tensor]
    outputs: dict[str, Tensor]
    handed: dict[str, Tensor]


def passed(
    built: BuiltModule,
    x: Tensor,
    forward: Callable[[], AbstractContextManager[Any]] = nullcontext,
    backward: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> RoundedPass:
    """A pass whose forward and backward are made within these."""
    module, outputs, handed = built.module, dict[str, Tensor](), dict[str, Tensor]()
    module.zero_grad(set_to_none=True)
    handles = [each.register_forward_hook(_keeping(path, outputs, handed)) for path, each in module.named_modules()]
    try:
        with torch.enable_grad():
            with forward():
                output = built(x)
            if output.requires_grad:
                cotangent = make_cotangent(output.float(), built.subject.seed).to(output.dtype)
                with backward():
                    ask("backward", lambda: output.backward(cotangent), module, output)
        found = {name: p.grad.to_dense().double() for name, p in module.named_parameters() if p.grad is not None}
        return RoundedPass(output.detach().double(), found, outputs, handed)
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
