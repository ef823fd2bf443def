"""Whether gradients of the first tokens' output reach later tokens, on which that output does not depend."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, require_finite
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.tensors.finite import isfinite

_ROUNDING = 1e3  # units in the last place that rounding may leave where a gradient cancels


@dataclass(frozen=True)
class Reach:
    """The largest gradient that later tokens get, at which token, and the largest that earlier ones get."""

    future: float
    past: float
    token: int
    eps: float

    @property
    def is_beyond_rounding(self) -> bool:
        """Whether that is more than rounding leaves of terms that cancel; NaN is."""
        return not (self.future <= _ROUNDING * self.eps * self.past)


def reach_into_the_future(built: BuiltModule, x: Tensor, num_first: int) -> Reach | None:
    """How far gradients of the first tokens' output reach; None when that output does depend on later tokens.

    Tokens are seen through what the modules that read the ids make of them.
    """
    with torch.no_grad():
        base = require_finite(built(x), x.shape[1])
        other = built(_with_other_future(built, x, num_first))
    eps = torch.finfo(base.dtype).eps
    scale = float(base[:, :num_first].abs().max())
    if not float((other - base)[:, :num_first].abs().max()) <= _ROUNDING * eps * scale:
        return None
    embedded: list[Tensor] = []
    with torch.enable_grad(), _embeddings_seen(built.module, x, embedded):
        given = x.clone().requires_grad_(x.is_floating_point())
        output = built.call(given.clone())
        if given.requires_grad:
            embedded = [given]
        if not output.requires_grad or not embedded:
            return None
        for each in embedded:
            each.retain_grad()
        loss = (output * make_cotangent(output, built.subject.seed))[:, :num_first].sum()
        ask("backward", loss.backward, built.module, output)
    for parameter in built.module.parameters():
        parameter.grad = None
    size = sum(_per_token(each) for each in embedded)
    assert isinstance(size, Tensor)
    if not bool(isfinite(size).all()):
        raise NotComparableError(f"gradients are not finite at S={x.shape[1]}")
    later = size[num_first:]
    return Reach(float(later.max()), float(size[:num_first].max()), num_first + int(later.argmax()), eps)


def _per_token(tensor: Tensor) -> Tensor:
    gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return gradient.detach().abs().flatten(2).amax(-1).amax(0)


def _with_other_future(built: BuiltModule, x: Tensor, num_first: int) -> Tensor:
    others = built.input(x.shape[1], batch=x.shape[0], seed=built.subject.seed + 31337)
    return torch.cat((x[:, :num_first], others[:, num_first:]), dim=1)


@contextmanager
def _embeddings_seen(module: nn.Module, x: Tensor, seen: list[Tensor]) -> Iterator[None]:
    """Collect what modules that are called with the ids themselves return: one vector a token."""

    def collect(called: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        is_of_ids = bool(args) and isinstance(args[0], Tensor) and not args[0].is_floating_point()
        if is_of_ids and isinstance(output, Tensor) and output.requires_grad and output.shape[:2] == x.shape:
            seen.append(output)

    handles = []
    if not x.is_floating_point():
        handles = [child.register_forward_hook(collect) for child in module.modules() if child is not module]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
