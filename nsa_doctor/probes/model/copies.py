"""Copies of a module that have to compute what it does: from its state_dict, by deepcopy, by pickle."""

import copy
import inspect
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Number
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import callable_place, definition_place
from nsa_doctor.probes.hooks.tensor_owners import tensors_held
from nsa_doctor.probes.internal import is_scripted
from nsa_doctor.probes.model.built_module import BuiltModule, built

_ANOTHER_SEED = 31337
_LARGEST = 1 << 28  # bytes of parameters and buffers that are pickled
_SCRIPTED = "TorchScript has compiled a part of it, of which a copy has no methods in Python"

Copied = BuiltModule | str
"""A copy, or the sentence that says why there is none."""


@dataclass(frozen=True)
class Unsaved:
    """A value that decides what a module computes and that its state_dict does not hold."""

    path: str
    name: str
    kind: str
    place: Place

    def __str__(self) -> str:
        return f"{self.path}.{self.name} ({self.kind})" if self.path else f"{self.name} ({self.kind})"


def from_state_dict(sp: BuiltModule) -> Copied:
    """A module built from another seed, into which the state_dict is loaded."""
    other = _of_another_seed(sp)
    state = sp.module.state_dict()
    loaded = attempt(lambda: other.module.load_state_dict(state, strict=False))
    if isinstance(loaded, Caught):
        return f"a module built afresh refuses its state_dict: {loaded.sentence}"
    given = dict(sp.module.named_parameters())
    with torch.no_grad():
        for name, own in other.module.named_parameters():
            if name not in state:  # left out of checkpoints on purpose, as a frozen base is
                own.copy_(given[name])
    return other


def copied_module(module: nn.Module) -> nn.Module:
    """A deep copy in which tensors that the module keeps from a pass, as a loss, have no history: torch copies no such.

    Raises what `copy.deepcopy` does.
    """
    kept = (holder.tensor for holder in tensors_held(module))
    memo = {id(each): each.detach().clone() for each in kept if each.grad_fn is not None}
    return copy.deepcopy(module, memo)


def by_deepcopy(sp: BuiltModule) -> Copied:
    """What `copy.deepcopy` makes of it."""
    if is_scripted(sp.module):
        return _SCRIPTED
    return _made(sp, lambda: copy.deepcopy(sp.module), "copy.deepcopy")


def by_pickle(sp: BuiltModule) -> Copied:
    """What comes out of pickle, and so of `torch.save(module)`."""
    if is_scripted(sp.module):
        return _SCRIPTED
    held = [*sp.module.parameters(), *sp.module.buffers()]
    if sum(each.numel() * each.element_size() for each in held) > _LARGEST:
        return "it is too large to be pickled in the time there is"
    return _made(sp, lambda: pickle.loads(pickle.dumps(sp.module)), "pickle")  # noqa: S301 (its own)


def unsaved(sp: BuiltModule) -> list[Unsaved]:
    """Buffers, tensors and numbers beside the state_dict that differ between two seeds."""
    first = built(sp.subject, dtype=sp.dtype).module
    others = dict(_of_another_seed(sp).module.named_modules())
    found = []
    for path, part in first.named_modules():
        here, there = _beside_state(part), _beside_state(others.get(path, part))
        for name, (value, kind) in here.items():
            if name in there and not _same(value, there[name][0]):
                found.append(Unsaved(path, name, kind, _where_assigned(part, path, name)))
    return found


def copying_place(root: nn.Module) -> Place:
    """The method with which a part says how it is copied; the subject itself where none does."""
    for path, part in root.named_modules():
        for name in ("__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__"):
            own = getattr(type(part), name, None)
            if own is not getattr(nn.Module, name, None):
                return replace(callable_place(own, part), module=path)
    return definition_place(root)


def _of_another_seed(sp: BuiltModule) -> BuiltModule:
    with _other_seeds():
        other = built(replace(sp.subject, seed=sp.subject.seed + _ANOTHER_SEED), dtype=sp.dtype)
    return replace(other, subject=sp.subject)


@contextmanager
def _other_seeds() -> Iterator[None]:
    """Have seeds that a factory sets be others; one that a module sets in its own methods is part of what it is."""
    plain_seed = torch.manual_seed

    def seed_otherwise(seed: int) -> torch.Generator:
        return plain_seed(seed if _is_of_a_module(frame_above(1)) else seed + _ANOTHER_SEED)

    with patch.object(torch, "manual_seed", seed_otherwise):
        yield


def _is_of_a_module(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_argcount and isinstance(frame.f_locals.get(frame.f_code.co_varnames[0]), nn.Module):
            return True
        frame = frame.f_back
    return False


def _made(sp: BuiltModule, make: Callable[[], nn.Module], by: str) -> Copied:
    copied = attempt(make)
    return f"{by} refuses it: {copied.sentence}" if isinstance(copied, Caught) else replace(sp, module=copied)


def _beside_state(module: nn.Module) -> Mapping[str, tuple[Any, str]]:
    """What a module holds by itself that state_dict leaves out, by name, with what it is."""
    saved = attempt(module.state_dict)
    kept = {} if isinstance(saved, Caught) else saved
    buffers = {name: (each, "a buffer with persistent=False") for name, each in module.named_buffers(recurse=False)}
    plain = {name: (each, _kind(each)) for name, each in vars(module).items() if _kind(each)}
    return {name: each for name, each in {**plain, **buffers}.items() if name not in kept}


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return "a plain tensor"
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, Number):
        return "a number"
    return "a plain container" if isinstance(value, (list, tuple)) and any(_kind(each) for each in value) else ""


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        alike = isinstance(other, (list, tuple)) and len(one) == len(other)
        return alike and all(_same(*each) for each in zip(one, other, strict=True))
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.shape == other.shape and torch.equal(one, other)
    return not _kind(one) or bool(one == other)


def _where_assigned(module: nn.Module, path: str, name: str) -> Place:
    """The line of the module's class that first gives the name its value."""
    kind = type(module)
    read = attempt(lambda: (inspect.getfile(kind), inspect.getsourcelines(kind)))
    place = Place(module=path, module_class=kind.__name__)
    if isinstance(read, Caught):
        return place
    file, (lines, first) = read
    assigns = re.compile(
        rf"self\.{re.escape(name)}\s*(?::[^=]+)?=(?!=)|register_buffer\(\s*['\"]{re.escape(name)}['\"]"
    )
    number = next((number for number, line in enumerate(lines) if assigns.search(line)), None)
    return place if number is None else replace(place, file=file, line=first + number, function="__init__")
