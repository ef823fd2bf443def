"""What experts are given: tokens, one in a row, or sums of tokens that were put into one slot.

A dispatch of zeros and ones (Switch Transformers, arXiv 2101.03961, section 2.2) multiplied by tokens has in each slot
of an expert one token, if no two were given the same place.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.divergence import recording_of
from nsa_doctor.probes.tensors.operations import tensors_in

_EXPERTS = re.compile(r"expert|moe|mixture", re.IGNORECASE)
_FEWEST = 4  # rows that are tokens, to say that tokens are what is given
_MOST_ROWS = 4096
_MOST_SUMS = 64  # rows that are looked at
_SAME = 1e-9  # of a row's largest number, in float64


@dataclass(frozen=True)
class SummedSlots:
    """A module that is given `num_tokens` rows which are tokens, and `num_sums` of which each is a sum of two."""

    name: str
    num_tokens: int
    num_sums: int
    given: Tensor


def summed_slots(sp: BuiltModule, x: Tensor) -> SummedSlots | None:
    """The first expert of a pass that is given sums of two tokens among tokens; `sp` computes in float64."""
    watch = _Calls(sp.module)
    with torch.no_grad(), watch.watching():
        sp(x)
    return next(iter(watch.found), None)


def line_that_gives(sp: BuiltModule, x: Tensor, given: Tensor) -> Place | None:
    """The line that makes what an expert is given."""
    recording = recording_of(sp, lambda: sp(x))
    same = (
        operation.place
        for operation in recording.operations
        for result in operation.results
        if operation.place.file and result.shape == given.shape and torch.equal(result, given)
    )
    return next(same, None)


@dataclass
class _Calls:
    """Follows calls of modules, and compares what experts are given with the tokens that a call around has."""

    module: nn.Module
    found: list[SummedSlots] = field(default_factory=list)
    _open: list[list[Tensor]] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Until the region ends."""
        names = {module: name for name, module in self.module.named_modules()}
        kinds = {module: f"{name} {type(module).__name__}" for module, name in names.items()}

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = [each for each in tensors_in(args, kwargs) if each.ndim > 1 and each.is_floating_point()]
            if given and not self.found and _EXPERTS.search(kinds[module]):
                self._compare(names[module], given[0])
            self._open.append(given)

        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self._open.pop()

        handles = [module.register_forward_pre_hook(enter, with_kwargs=True) for module in names]
        handles += [module.register_forward_hook(leave, always_call=True) for module in names]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _compare(self, name: str, given: Tensor) -> None:
        rows = given.detach().double().flatten(0, -2)
        for outer in reversed(self._open):
            tokens = [each for each in outer if each.ndim > 2 and each.shape[-1] == given.shape[-1]]
            if tokens and tokens[0] is not given:
                counts = _counted(rows, tokens[0].detach().double().flatten(0, -2))
                if counts is not None:
                    self.found.append(SummedSlots(name, *counts, given.detach().clone()))
                return


def _counted(rows: Tensor, tokens: Tensor) -> tuple[int, int] | None:
    """How many rows are tokens and how many sums of two, where most rows that are no tokens are such sums."""
    if not len(rows) or len(rows) > _MOST_ROWS or len(tokens) > _MOST_ROWS:
        return None
    allowed = _SAME * float(tokens.abs().max())
    held = rows[rows.abs().amax(1) > allowed]
    others = held[~_is_one_of(held, tokens, allowed)]
    num_tokens = len(held) - len(others)
    if not len(others) or num_tokens < _FEWEST:
        return None
    looked_at = others[:_MOST_SUMS]
    num_sums = sum(bool(_is_one_of(row - tokens, tokens, allowed).any()) for row in looked_at)
    return (num_tokens, num_sums) if num_sums >= len(looked_at) / 2 else None


def _is_one_of(rows: Tensor, tokens: Tensor, allowed: float) -> Tensor:
    """For each row [n, D] whether it is one of the tokens [m, D]."""
    distances = torch.cdist(rows, tokens, p=torch.inf)
    return distances.amin(1) <= allowed if len(tokens) and len(rows) else rows.new_zeros(len(rows), dtype=torch.bool)
