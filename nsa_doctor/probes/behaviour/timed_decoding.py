"""Decoding in which each row's tokens have times of their own, where a module takes times."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.attention.decoding import answer_to_part, decode
from nsa_doctor.probes.behaviour.lost_times import arguments_of_times
from nsa_doctor.probes.behaviour.optional_arguments import giving_instead, is_another
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.subject.contract import Subject

HELD = "held"
"""The name of what holds the module's own cache, within the one that is kept here."""

_LENGTH, _ROWS = 5, 3
_STEPS = 3
_STARTS, _GAPS = 64, 4
_PER_STARTS, _PER_GAPS = 0.37, 0.61


class TimedCache(NamedTuple):
    """A cache, with where each row's clock began [B], how fast it goes [B], and how many tokens were read.

    A tuple, so that fields of the cache are seen in it.
    """

    held: Any
    start: Tensor
    gap: Tensor
    seen: int = 0

    def times(self, count: int) -> Tensor:
        """[B, count] of the next tokens."""
        places = torch.arange(self.seen, self.seen + count, dtype=torch.float64, device=self.gap.device)
        return self.start[:, None] + self.gap[:, None] * places


def timed_by_rows(sp: BuiltModule) -> Iterator[BuiltModule]:
    """The module decoded with times, for each argument that takes times of each token and by which its answers change.

    The same row of tokens has the same times, however many rows are beside it.
    """
    x = sp.input(min(_LENGTH, sp.subject.max_length), _ROWS)
    for name in arguments_of_times(sp.module.forward):
        ways = (replace(sp, subject=_timed(sp.subject, name, dtype)) for dtype in (torch.float64, torch.int64))
        with unobserved():
            found = next((way for way in ways if attempt(lambda way=way: _matters(sp, way, x)) is True), None)
        if found is not None:
            yield found


def decoded_with(sp: BuiltModule, x: Tensor, name: str, times: Tensor) -> Tensor:
    """[B, 4, ...]: what the last token of a prompt and each of three behind it is answered with, with its `times`."""
    outputs: list[Tensor] = []
    cache, start = None, 0
    seed_everything(sp.subject.seed)
    for size in (x.shape[1] - _STEPS, *[1] * _STEPS):
        part = slice(start, start + size)
        with torch.no_grad(), giving_instead(sp.module, {name: times[:, part]}):
            output, cache = answer_to_part(sp, x[:, part], cache, is_prompt=start == 0)
        outputs.append(output[:, -1:])
        start += size
    return torch.cat(outputs, dim=1)


def _matters(sp: BuiltModule, way: BuiltModule, x: Tensor) -> bool:
    sizes = [x.shape[1] - 2, 1, 1]
    return is_another(*(decode(each, x, sizes).output for each in (sp, way)))


def _timed(subject: Subject, name: str, dtype: torch.dtype) -> Subject:
    prefill, step, reorder = subject.prefill, subject.step, subject.reorder
    assert prefill is not None
    assert step is not None

    def answered(
        call: Callable[[], tuple[Tensor, Any]], module: nn.Module, x: Tensor, cache: TimedCache
    ) -> tuple[Tensor, TimedCache]:
        with giving_instead(module, {name: cache.times(x.shape[1]).to(dtype)}):
            output, held = call()
        return output, cache._replace(held=held, seen=cache.seen + x.shape[1])

    @wraps(prefill)
    def first(module: nn.Module, x: Tensor) -> tuple[Tensor, TimedCache]:
        sums = torch.tensor([float(row.double().sum().abs()) for row in x], dtype=torch.float64, device=x.device)
        start, gap = ((sums * by).frac() * most for by, most in ((_PER_STARTS, _STARTS), (_PER_GAPS, _GAPS)))
        return answered(lambda: prefill(module, x), module, x, TimedCache(None, start.floor(), gap.floor() + 1))

    @wraps(step)
    def next_one(module: nn.Module, x: Tensor, cache: TimedCache) -> tuple[Tensor, TimedCache]:
        return answered(lambda: step(module, x, cache.held), module, x, cache)

    if reorder is None:
        return replace(subject, prefill=first, step=next_one)

    @wraps(reorder)
    def chosen(module: nn.Module, cache: TimedCache, rows: Tensor) -> TimedCache:
        held = reorder(module, cache.held, rows)
        return cache._replace(held=held, start=cache.start[rows], gap=cache.gap[rows])

    return replace(subject, prefill=first, step=next_one, reorder=chosen)
