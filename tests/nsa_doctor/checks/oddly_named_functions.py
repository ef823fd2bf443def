"""Functions named for known operations that compute odd forms of them."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.nsa_doctor.checks.misnamed_parts import DIM


def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def layer_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.layer_norm(x, shape, weight, bias)


def l2norm(x: Tensor, groups: int = 1) -> Tensor:
    return functional.normalize(x.unflatten(-1, (groups, -1)), dim=-1).flatten(-2)


def swiglu(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """As gpt-oss has it: in turns, cut off, and with one more."""
    gate, linear = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (linear + 1)


CHOSEN = torch.tanh


def glu(x: Tensor, *, activation: Callable[[Tensor], Tensor] = torch.tanh) -> Tensor:
    value, gate = x.chunk(2, -1)
    return value * activation(gate)


def my_glu(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, -1)
    return value * CHOSEN(gate)


def registered(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__wrapped__ = function  # type: ignore[attr-defined]
    return function


@registered
def silu(x: Tensor) -> Tensor:
    return x * x.sigmoid()


class Uncopied(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.clone, Tensor.detach):
            raise TypeError("no copies of it")
        return super().__torch_function__(func, types, args, kwargs or {})


def mish(x: Tensor) -> Tensor:
    return functional.mish(x)


class Silu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(x)


class Handing(nn.Module):
    """Hands a tensor that may not be copied to a part."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Silu()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.part(x.as_subclass(Uncopied))
        return y.as_subclass(Tensor)


HEALTHY_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu-new": gelu_new,
    "layer-norm": lambda x: layer_norm(x, (DIM,), torch.ones(DIM, dtype=x.dtype)),
    "l2norm": l2norm,
    "l2norm-groups": lambda x: l2norm(x, 4),
    "swiglu": swiglu,
    "wrapped-by-itself": silu,
    "glu-of-a-function-by-keyword": lambda x: glu(x, activation=torch.tanh),
    "glu-of-a-function-of-its-file": my_glu,
    "of-a-tensor-that-is-not-copied": lambda x: mish(x.as_subclass(Uncopied)).as_subclass(Tensor),
    "within-a-transform": torch.vmap(mish),
}


class LearntSwish(nn.Module):
    def __init__(self, start: float = 1.0, size: int = 1) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.full((size,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


class WideSwish(nn.Module):
    def __init__(self, beta: float = 1.5) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        return (self.beta * x) * torch.sigmoid(x)
