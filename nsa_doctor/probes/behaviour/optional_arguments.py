"""Arguments that a forward may be given beside its input: which values it takes, and what a call with one does."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import BuiltModule

_OF_ANOTHER_KIND = frozenset(  # words of what holds for a call, and of what others ask of
    {
        *("mask", "masks", "cache", "caches", "past", "state", "states", "mem", "mems", "memory", "hidden", "loss"),
        *("target", "targets", "weight", "weights", "bias", "position", "positions", "pos", "index", "indices", "idx"),
        *("offset", "offsets", "start", "end", "cu", "rope", "rotary", "freqs", "order", "group", "groups", "segment"),
        *("segments", "batch", "importance", "graph", "edge", "edges", "ptr", "return", "output", "outputs", "use"),
        *("deterministic", "training", "inplace", "generator", "seed", "rng", "layers", "heads", "perm", "sort"),
    }
)
_OF_ROWS = frozenset(  # words of what each row of a batch has one of
    {
        *("t", "time", "times", "timestep", "timesteps", "step", "steps", "sigma", "sigmas", "noise", "level"),
        *("label", "labels", "y", "class", "classes", "cls", "cond", "condition", "conditioning", "guidance"),
        *("style", "speaker", "length", "lengths", "lens", "domain", "task", "language", "lang", "temperature"),
    }
)
_TOKENS = 8  # a number of tokens
_ROUNDINGS = 1e5
_MORE = 2  # rows, at which an argument for each row is tried again: three may be heads or channels too


@dataclass(frozen=True)
class Given:
    """An argument and a value for it, of one number for each row if it `is_by_row`, else of one number."""

    name: str
    value: Any
    is_by_row: bool


def accepted(sp: BuiltModule, x: Tensor) -> Iterator[Given]:
    """Of each optional argument the first value that it takes and that changes the answer for x [B, S, ...]."""
    parameters = attempt(lambda: inspect.signature(sp.module.forward).parameters)
    if isinstance(parameters, Caught):
        return
    plain = sp(x)
    for name, parameter in parameters.items():
        is_number, words = type(parameter.default) in (int, float), set(name.lower().split("_"))
        if (parameter.default is None or is_number) and not _OF_ANOTHER_KIND & words:
            values = [Given(name, value, is_by_row=True) for value in _values(x) if _OF_ROWS & words]
            values += [] if is_number else [Given(name, _TOKENS, is_by_row=False)]
            found = next((each for each in values if _is_taken(sp, x, each, plain)), None)
            if found is not None and (not found.is_by_row or _is_by_row(sp, x, found)):
                yield found


def _is_by_row(sp: BuiltModule, x: Tensor, given: Given) -> bool:
    """Whether more rows take as many numbers more."""
    longer = torch.cat((x, sp.input(x.shape[1], _MORE)))
    value = next(each for each in _values(longer) if each.dtype == given.value.dtype)
    with giving(sp.module, {given.name: value}):
        return isinstance(attempt(lambda: sp(longer)), Tensor)


def _values(x: Tensor) -> Iterator[Tensor]:
    """A number for each row: fractions, and whole ones."""
    rows = len(x)
    yield (torch.arange(1, rows + 1, device=x.device) / (rows + 1)).to(x if x.is_floating_point() else torch.float32)
    yield 1 + torch.arange(rows, device=x.device) % 3


def _is_taken(sp: BuiltModule, x: Tensor, given: Given, plain: Tensor) -> bool:
    with giving(sp.module, {given.name: given.value}):
        answer = attempt(lambda: sp(x))
    return isinstance(answer, Tensor) and answer.shape == plain.shape and is_another(answer, plain)


def is_another(answer: Tensor, other: Tensor) -> bool:
    """Whether two answers differ by more than rounding."""
    size = max(float(answer.abs().max()), float(other.abs().max()))
    return not float((answer - other).abs().max()) <= _ROUNDINGS * torch.finfo(answer.dtype).eps * size


@contextmanager
def giving(module: nn.Module, arguments: Mapping[str, Any]) -> Iterator[None]:
    """A region in which calls of the module have these arguments beside their own."""
    handle = module.register_forward_pre_hook(
        lambda _module, args, kwargs: (args, {**arguments, **kwargs}), with_kwargs=True
    )
    try:
        yield
    finally:
        handle.remove()
