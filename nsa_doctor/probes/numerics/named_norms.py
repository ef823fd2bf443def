"""Modules that bear the name of a norm, asked alone: whether what they give has the size that the name promises.

RMSNorm (arXiv 1910.07467, equation 4) and LayerNorm (arXiv 1607.06450, equation 4) divide by the root of a mean square:
whatever the size of the input, without weights and biases the mean square of the output is one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.model.built_module import BuiltModule

_NAME = re.compile(r"(rms|layer|l2|scale)_?norm(alization|gated|fp32|\d\w?)?$", re.IGNORECASE)  # not LayerNormLinear
_OWN_SIZE = re.compile(r"l2|scale", re.IGNORECASE)  # a length of one, or one that is learnt
_TIMES = 8.0
_TOLERANCE = 0.05  # an epsilon of a twentieth is larger than any


@dataclass(frozen=True)
class NormFault:
    """A norm by its name, what it was asked with, and what is wrong with its answer, in words."""

    name: str
    module: nn.Module
    x: Tensor
    text: str


def faulty_norms(sp: BuiltModule, length: int) -> Iterator[NormFault]:
    """The norms that a pass calls with one tensor, and that do not keep what their names promise.

    `sp` has the weights that it starts with.
    """
    for name, (module, x) in _called(sp, length).items():
        generator = torch.Generator().manual_seed(sp.subject.seed)
        ordinary = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
        text = attempt(lambda module=module, ordinary=ordinary: _fault(module, ordinary))
        if isinstance(text, str):
            yield NormFault(name, module, ordinary, text)


def _called(sp: BuiltModule, length: int) -> dict[str, tuple[nn.Module, Tensor]]:
    """Those that are called with one tensor and answer with one of its shape, and what they are given."""
    called: dict[str, tuple[nn.Module, Tensor]] = {}
    names = {module: name for name, module in sp.module.named_modules() if _is_norm(module)}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = [each for each in (*args, *kwargs.values()) if each is not None]
        is_plain = len(given) == 1 and isinstance(given[0], Tensor) and isinstance(output, Tensor)
        if is_plain and given[0].is_floating_point() and output.shape == given[0].shape:
            called[names[module]] = module, given[0].detach()

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in names]
    try:
        with torch.no_grad():
            sp(sp.input(length))
    finally:
        for handle in handles:
            handle.remove()
    return called


def _is_norm(module: nn.Module) -> bool:
    kind = type(module)
    return bool(_NAME.search(kind.__name__)) and not kind.__module__.startswith("torch.") and not any(module.children())


def _fault(module: nn.Module, x: Tensor) -> str | None:
    with torch.no_grad():
        shift = module(torch.zeros_like(x))
        shift = torch.where(torch.isfinite(shift), shift, 0.0)
        plain, larger = module(x) - shift, module(_TIMES * x) - shift
    sizes = _size(plain), _size(larger)
    if not all(torch.isfinite(torch.tensor(sizes))) or not sizes[0]:
        return None
    if abs(sizes[1] / sizes[0] - 1) > _TOLERANCE:
        return f"an input {_TIMES:g} times as large gives an output {sizes[1] / sizes[0]:.3g} times as large"
    weights = [each.detach() for each in module.parameters()]
    due = {1.0, *(_size(each) for each in weights), *(_size(1 + each) for each in weights)}
    if _OWN_SIZE.search(type(module).__name__) or any(abs(sizes[0] - each) <= _TOLERANCE * each for each in due):
        return None
    of = f" (weights {_size(weights[0]):.3g})" if weights else ""
    return f"the root of the mean square of its output is {sizes[0]:.3g}{of}"


def _size(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())
