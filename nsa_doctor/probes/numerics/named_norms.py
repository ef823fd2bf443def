"""Modules that bear the name of a norm, asked alone: whether what they give has the size that the name promises.

RMSNorm (arXiv 1910.07467, equation 4) and LayerNorm (arXiv 1607.06450, equation 4) divide by the root of a mean square:
whatever the size of the input, without weights and biases the mean square of the output is one.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.internal import NORMS_BY_BATCH
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.norm_measures import measures_something_else

_NAME = re.compile(r"(rms|layer|l2|scale)_?norm(alization|gated|fp32|\d\w?)?$", re.IGNORECASE)  # not LayerNormLinear
_OWN_SIZE = re.compile(r"l[12]|scale|complex", re.IGNORECASE)  # a length of one, one that is learnt, or that of pairs
_OF_TORCH = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, NORMS_BY_BATCH)  # of which the weights alone may be wrong
_TIMES = 8.0
_FEWEST = 8
_WITH_GATE = 2  # tensors
_TOLERANCE = 0.05  # an epsilon of a twentieth is larger than any


@dataclass(frozen=True)
class NormFault:
    """A norm by its name, what it was asked with, and what is wrong with its answer, in words.

    `parameter` is the name of the one that is at fault, if one is; `gates` are what it is given beside its input.
    """

    name: str
    module: nn.Module
    x: Tensor
    text: str
    parameter: str = ""
    gates: tuple[Tensor, ...] = ()


def faulty_norms(sp: BuiltModule, length: int) -> Iterator[NormFault]:
    """The norms that a pass calls with one tensor, and that do not keep what their names promise.

    `sp` has the weights that it starts with.
    """
    for name, module in sp.module.named_modules():
        is_torchs = isinstance(module, _OF_TORCH) and type(module).forward.__module__.startswith("torch.")
        weights = getattr(module, "weight", None) if is_torchs else None
        if isinstance(weights, Tensor) and (said := _both_sides(weights)):
            yield NormFault(name, module, sp.input(length), said, f"{name}.weight" if name else "weight")
    for name, (module, x, gates) in _called(sp, length).items():
        generator = torch.Generator().manual_seed(sp.subject.seed)
        ordinary = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
        text = attempt(lambda module=module, ordinary=ordinary, gates=gates: _fault(module, ordinary, gates))
        if isinstance(text, str):
            yield NormFault(name, module, ordinary, text, gates=gates)
        elif text is None and not gates and (weights := _about_zero(module, ordinary)):
            own, said = weights
            yield NormFault(name, module, ordinary, said, f"{name}.{own}" if name else own)


def _called(sp: BuiltModule, length: int) -> dict[str, tuple[nn.Module, Tensor, tuple[Tensor, ...]]]:
    """Those that are called with one tensor, and may be with a gate, and answer with one of their shape: with what."""
    called: dict[str, tuple[nn.Module, Tensor, tuple[Tensor, ...]]] = {}
    names = {module: name for name, module in sp.module.named_modules() if _is_norm(module)}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = [each for each in (*args, *kwargs.values()) if each is not None]
        tensors = [each.detach() for each in (*given, output) if isinstance(each, Tensor) and each.is_floating_point()]
        are_alike = len(tensors) == len(given) + 1 and len({each.shape for each in tensors}) == 1
        if are_alike and given and len(args) >= len(given) <= _WITH_GATE:
            called[names[module]] = module, tensors[0], tuple(tensors[1:-1])

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


def _fault(module: nn.Module, x: Tensor, gates: Sequence[Tensor]) -> str | None:
    plain = _unshifted(module, x, gates)
    larger = [_unshifted(module, *given) for given in _larger(x, gates)]
    sizes = _size(plain), *map(_size, larger)
    if not all(map(math.isfinite, sizes)) or not sizes[0]:
        return None
    times = [size / sizes[0] for size in sizes[1:]]
    if all(abs(each - 1) > _TOLERANCE for each in times):
        beside = " beside the same gate" if gates else ""
        return f"an input {_TIMES:g} times as large{beside} gives an output {times[0]:.3g} times as large"
    if gates or _OWN_SIZE.search(type(module).__name__):
        return None
    if any(_is_one(plain / scale) for scale in _scales(module, plain)):
        return None
    if measures_something_else(lambda given: _unshifted(module, given), x):
        return None
    weights = [each.detach() for each in module.parameters()]
    of = f" (weights {_size(weights[0]):.3g})" if weights else ""
    return f"the root of the mean square of its output is {sizes[0]:.3g}{of}"


def _larger(x: Tensor, gates: Sequence[Tensor]) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
    """What it may be asked with that a norm gives the same for: of two, either may be the gate, or what is added."""
    yield _TIMES * x, gates
    if gates:
        yield x, [_TIMES * each for each in gates]
        yield _TIMES * x, [_TIMES * each for each in gates]


def _unshifted(module: nn.Module, x: Tensor, gates: Sequence[Tensor] = ()) -> Tensor:
    """What it answers, without what it adds to everything."""
    with torch.no_grad():
        shift = module(torch.zeros_like(x), *gates)
        answer: Tensor = module(x, *gates) - torch.where(torch.isfinite(shift), shift, 0.0)
    return answer


def _about_zero(module: nn.Module, x: Tensor) -> tuple[str, str] | None:
    """The name of weights that it multiplies by and that begin on both sides of zero, and what is seen of them."""
    plain = _unshifted(module, x)
    for name, weights in module.named_parameters():
        if not _fits(weights, x) or not _is_one(plain / weights.detach().to(x)):
            continue
        said = _both_sides(weights)
        if said and not _is_one(plain / (1 + weights.detach().to(x))):
            return name, said
    return None


def _both_sides(weights: Tensor) -> str:
    """That weights by which a norm multiplies begin on both sides of zero; nothing where they do not."""
    values = weights.detach().double()
    mean, spread = float(values.mean()), float(values.std()) if values.numel() >= _FEWEST else 0.0
    if abs(mean) >= spread:
        return ""
    return f"its weights begin on both sides of zero, at {mean:.2g} ± {spread:.2g} in place of one"


def _scales(module: nn.Module, x: Tensor) -> Iterator[Tensor]:
    """What its output may be multiplied by: nothing, one of its parameters or two, or by how much more than one."""
    yield x.new_ones(())
    fitting = [each.detach().to(x) for each in module.parameters() if _fits(each, x)]
    single = [*fitting, *(1 + each for each in fitting)]
    yield from single
    yield from (one * other for one, other in combinations(single, 2) if one.numel() == 1 or other.numel() == 1)


def _fits(parameter: Tensor, x: Tensor) -> bool:
    shape = attempt(lambda: torch.broadcast_shapes(parameter.shape, x.shape))
    return shape == x.shape


def _is_one(values: Tensor) -> bool:
    """Whether the root of the mean square is, where something was multiplied by more than nothing."""
    kept = values[torch.isfinite(values)]
    return bool(kept.numel()) and abs(_size(kept) - 1) <= _TOLERANCE


def _size(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())
