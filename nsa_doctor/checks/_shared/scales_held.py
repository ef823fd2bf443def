"""Factors that modules hold as numbers, and whether another value in their place changes anything."""

import ast
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.probes.hooks.attribute_lines import methods_of
from nsa_doctor.probes.hooks.reached_lines import reached_lines
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.subject.contract import Subject

LENGTH = 19
_ANOTHER = 1.7  # times the value
_NAME = re.compile(r"(?:\w*_)?(?:scale|scaling|scale_factor|scaling_factor|softcap|soft_cap|softcapping)$")
_OF_OTHERS = re.compile(r"loss|grad|init|lr|noise|aug|rope|rotary|pos|image|sampl|use_")  # not of what a pass computes
_PREPARING = re.compile(r"_*(init|reset|post_init|extra_repr|repr|set_|update_|make_|build)\w*")


@dataclass(frozen=True)
class Reader:
    """A method that reads an attribute, and the lines at which it does."""

    name: str
    file: str
    lines: frozenset[int]


@dataclass(frozen=True)
class Factor:
    """A number that a module holds, in itself or by a key of a dictionary, and the methods that read it."""

    path: str
    holder: nn.Module
    name: str
    key: str | None
    value: float
    readers: tuple[Reader, ...]

    @contextmanager
    def replaced(self, value: float) -> Iterator[None]:
        """A region in which it is another."""
        held = vars(self.holder) if self.key is None else vars(self.holder)[self.name]
        word = self.name if self.key is None else self.key
        was = held[word]
        held[word] = value
        try:
            yield
        finally:
            held[word] = was

    @property
    def another(self) -> float:
        """A value to try in its place."""
        return _ANOTHER * self.value


def idle_factors(subject: Subject) -> tuple[nn.Module, list[Factor]]:
    """The module, and those of its factors of which another value changes nothing."""
    sp = comparable_module(subject)
    x = sp.input(min(LENGTH, subject.max_length), 2)
    found = _at_work(sp, x, list(_factors(sp.module)))
    with torch.no_grad():
        output = sp(x) if found else x
        idle = _unread(sp, x, [each for each in found if _is_same(sp, x, output, each)])
    return sp.module, [each for each in idle if not _moves_gradients(subject, each)]


def _factors(root: nn.Module) -> Iterator[Factor]:
    roots = {part.shape[axis] for part in root.parameters() for axis in range(part.ndim)}
    for path, holder in root.named_modules():
        for name, held in vars(holder).items():
            if not _NAME.match(name) or _OF_OTHERS.search(name):
                continue
            numbers = {None: held} if isinstance(held, float) else held if isinstance(held, dict) else {}
            for key, value in numbers.items():
                if isinstance(value, float) and math.isfinite(value) and value not in (0.0, 1.0):
                    readers = tuple(_readers(holder, name))
                    if readers and not (key is None and _is_of_channels(value, roots)):
                        yield Factor(path, holder, name, key, value, readers)


def _readers(holder: nn.Module, name: str) -> Iterator[Reader]:
    """Its methods that read the attribute, without those that only make it or take part in no pass."""
    seen: set[str] = set()
    for file, method in methods_of(holder):
        is_overridden = method.name in seen
        seen.add(method.name)
        lines = frozenset(
            node.lineno
            for node in ast.walk(method)
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
        )
        if lines and not is_overridden and not _PREPARING.match(method.name):
            yield Reader(method.name, file, lines)


def _unread(sp: BuiltModule, x: Tensor, factors: list[Factor]) -> list[Factor]:
    """Those that no line reads which a pass comes to: one that is read may have an effect on other inputs."""
    files = {reader.file for each in factors for reader in each.readers}
    if not files:
        return []
    with reached_lines(files.__contains__) as reached:
        sp(x)
    return [
        each for each in factors if not any(reader.lines & reached.get(reader.file, set()) for reader in each.readers)
    ]


def _is_of_channels(value: float, sizes: set[int]) -> bool:
    """Whether it is what attention scales by of itself: one over the root of a number of channels."""
    heads = {size // count for size in sizes for count in range(1, 65) if size % count == 0}
    return any(math.isclose(value, size**-0.5, rel_tol=1e-6) for size in heads if size >= 8)


def _at_work(sp: BuiltModule, x: Tensor, factors: list[Factor]) -> list[Factor]:
    """Those whose holders are called in one pass, or have a parameter that the output is computed from."""
    if not factors:
        return []
    called: set[nn.Module] = set()
    holders = {each.holder for each in factors}
    handles = [each.register_forward_pre_hook(lambda module, _given: called.add(module)) for each in holders]
    try:
        output = sp(x)
    finally:
        for handle in handles:
            handle.remove()
    leaves = [each for each in sp.module.parameters() if each.requires_grad]
    found = torch.autograd.grad(output.sum(), leaves, allow_unused=True) if output.requires_grad else ()
    used = {id(leaf) for leaf, gradient in zip(leaves, found, strict=False) if gradient is not None}
    called |= {each for each in holders if used & {id(own) for own in each.parameters()}}
    return [each for each in factors if each.holder in called]


def _is_same(sp: BuiltModule, x: Tensor, output: Tensor, factor: Factor) -> bool:
    with factor.replaced(factor.another):
        return torch.equal(sp(x), output)


def _moves_gradients(subject: Subject, factor: Factor) -> bool:
    """Whether it changes the output or a gradient in training mode, where it is built once more."""
    if "train" not in subject.modes:
        return False
    sp = built(subject, mode="train")
    holder: Any = sp.module.get_submodule(factor.path)
    own = replace(factor, holder=holder)
    first = _trained(sp)
    with own.replaced(factor.another):
        return not all(map(torch.equal, first, _trained(sp)))


def _trained(sp: BuiltModule) -> list[Tensor]:
    output = sp(sp.input(min(LENGTH, sp.subject.max_length), 2))
    leaves = [each for each in sp.module.parameters() if each.requires_grad]
    if not output.requires_grad or not leaves:
        return [output.detach()]
    found = torch.autograd.grad(output.square().sum(), leaves, allow_unused=True)
    return [output.detach(), *(each for each in found if each is not None)]
