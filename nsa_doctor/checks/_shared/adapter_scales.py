"""The factor of a low-rank adapter, alpha / rank, and whether another value in its place changes anything."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

LENGTH = 19
_ANOTHER = 1.7  # times the value
_MODES: tuple[Mode, ...] = ("eval", "train")
_SCALE = re.compile(r"(?:\w*_)?(?:scale|scaling|scale_factor|scaling_factor)")
_ALPHA, _RANK = re.compile(r"(?:\w*_)?alpha"), re.compile(r"(?:\w*_)?(?:r|rank|dim)")


@dataclass(frozen=True)
class AdapterScale:
    """A number that a module holds, in itself or by a key of a dictionary, and that is its alpha / rank."""

    path: str
    holder: nn.Module
    name: str
    key: Any
    value: float

    @property
    def another(self) -> float:
        """A value to try in its place."""
        return _ANOTHER * self.value

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """A region in which it is another."""
        held: Any = vars(self.holder) if self.key is None else vars(self.holder)[self.name]
        word = self.name if self.key is None else self.key
        was = held[word]
        held[word] = self.another
        try:
            yield
        finally:
            held[word] = was


def scales_left_out(subject: Subject) -> tuple[nn.Module, list[AdapterScale], int]:
    """The module, those of its adapters' factors of which another changes nothing, and how many it has in use.

    Neither an output nor a gradient, in eval() and in training mode, from all parameters of the adapter.
    """
    modes: list[Mode] = [mode for mode in _MODES if mode in subject.modes] or [subject.modes[0]]
    built_in = [built(subject, mode=mode) for mode in modes]
    found = [list(_in_use(sp)) for sp in built_in]
    idle = [
        {(each.path, each.name, each.key) for each in scales if _is_without_effect(sp, each)}
        for sp, scales in zip(built_in, found, strict=True)
    ]
    left_out = [each for each in found[0] if all((each.path, each.name, each.key) in every for every in idle)]
    return built_in[0].module, left_out, max(map(len, found))


def _in_use(sp: BuiltModule) -> Iterator[AdapterScale]:
    """The factors of modules of which every parameter that is trained has a part in the output."""
    factors = list(_factors(sp.module))
    if not factors:
        return
    leaves = {name: each for name, each in sp.module.named_parameters() if each.requires_grad}
    output, gradients = _pass(sp)
    used = {name for name, gradient in zip(leaves, gradients, strict=False) if gradient is not None}
    for each in factors:
        own = {name for name in leaves if name.startswith(f"{each.path}." if each.path else "")}
        if output.requires_grad and own and own <= used:
            yield each


def _factors(root: nn.Module) -> Iterator[AdapterScale]:
    for path, holder in root.named_modules():
        for name, held in vars(holder).items():
            if _SCALE.fullmatch(name):
                numbers = held if isinstance(held, dict) else {None: held}
                for key, value in numbers.items():
                    if isinstance(value, (int, float)) and value not in (0, 1) and _is_of_rank(holder, key, value):
                        yield AdapterScale(path, holder, name, key, float(value))


def _is_of_rank(holder: nn.Module, key: object, value: float) -> bool:
    """Whether it is an alpha over a rank, or over its root, that the module holds too."""
    alphas, ranks = (list(_numbers(holder, pattern, key)) for pattern in (_ALPHA, _RANK))
    return any(
        rank > 0 and math.isclose(value, alpha / root, rel_tol=1e-6)
        for alpha in alphas
        for rank in ranks
        for root in (rank, math.sqrt(rank))
    )


def _numbers(holder: nn.Module, pattern: re.Pattern[str], key: object) -> Iterator[float]:
    buffers = ((name, each.item()) for name, each in holder.named_buffers(recurse=False) if each.numel() == 1)
    for name, held in (*vars(holder).items(), *buffers):
        value = held.get(key) if isinstance(held, dict) else held
        if pattern.fullmatch(name) and isinstance(value, (int, float)):
            yield float(value)


def _is_without_effect(sp: BuiltModule, scale: AdapterScale) -> bool:
    first, gradients = _pass(sp)
    with scale.replaced():
        other = attempt(lambda: _pass(sp))
    if isinstance(other, Caught):  # it is asked for
        return False
    pairs = zip(gradients, other[1], strict=True)
    return torch.equal(first, other[0]) and all(a is b or torch.equal(a, b) for a, b in pairs)  # type: ignore[arg-type]


def _pass(sp: BuiltModule) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    output = sp(sp.input(min(LENGTH, sp.subject.max_length), 2))
    leaves = [each for each in sp.module.parameters() if each.requires_grad]
    if not output.requires_grad or not leaves:
        return output, ()
    return output, torch.autograd.grad(output.square().sum(), leaves, allow_unused=True)
