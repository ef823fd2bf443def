"""Bugs planted in `nsa`'s own operators, each by replacing one name, and foreign hosts with bugs that fuzzing finds."""

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa.ops import geometry
from nsa_doctor.adapters.nsa_layer import builtin_subject
from nsa_doctor.subject.contract import Subject

from .host import DIM, hosting

Patch = tuple[str, str, Callable[[Any], Any]]
"""(module, dotted name in it, what makes the faulty one of the healthy one)"""


def _shifted(healthy):
    return lambda slots, num_tokens, geometry: healthy(slots, num_tokens, geometry).roll(1, -1)


def _clamps_in_place(healthy):
    return lambda ranges, num_tokens: healthy(ranges.to(torch.int64).clamp_(0, num_tokens), num_tokens)


def _clamps(healthy):
    def faulty(ranges: Tensor, num_tokens: int) -> Tensor:
        bounded = ranges.clamp(0, num_tokens)
        return healthy(torch.stack((bounded[..., 0], bounded.amax(-1)), -1), num_tokens)

    return faulty


def _unmerged(healthy):
    def faulty(slots: Tensor, num_tokens: int, of: geometry.Geometry) -> Tensor:
        start = slots.long() * of.l_sel
        healthy(slots, num_tokens, of)  # still refuses what is no block
        ranges = torch.stack((start, (start + of.l_sel).clamp(max=num_tokens)), -1)
        return torch.where((slots == -1)[..., None], 0, ranges)

    return faulty


def _descending(healthy):
    return lambda mask, num_slots, of: healthy(mask, num_slots, of).flip(-1)


def _sees_one_more(healthy):
    return lambda self, query, key: key * self.geometry.d + self.geometry.l - 1 <= self.first_query + query + 1


def _window_one_short(healthy):
    def faulty(*given):
        window = healthy(*given)
        return replace(window, w=max(1, window.w - 1))

    return faulty


def _softmax_of_nothing(healthy):
    """A query that sees no block gets NaN, as a softmax over −inf does."""

    def faulty(q, k_cmp, v_cmp, geometry, first_query, *more):
        out, slots = healthy(q, k_cmp, v_cmp, geometry, first_query, *more)
        blind = torch.arange(first_query, first_query + q.shape[1]) < geometry.l - 1
        return torch.where(blind[:, None, None], out / out * 0, out) if bool(blind.any()) else out, slots

    return faulty


def _crosses_sequences(healthy):
    return lambda q, k, v, geometry, by, cu_seqlens, lengths: by.sliding.function(q, k, v, geometry, *by.sliding.more)


def _ignores_causality(healthy):
    return lambda q, k, v, slots, geometry, *more: healthy(
        torch.cat((q[:, 1:], q[:, -1:]), 1), k, v, slots, geometry, *more
    )


def _drops_the_forced(healthy):
    def faulty(importance: Tensor, of: geometry.Geometry, first_query: int) -> Tensor:
        slots = healthy(importance, of, first_query)
        return torch.where(slots[..., :1] == 0, torch.cat((slots[..., 1:], slots[..., :1] * 0 - 1), -1), slots)

    return faulty


def _unsorted(healthy):
    return lambda importance, of, first_query: healthy(importance, of, first_query).flip(-1)


def _of_the_future(healthy):
    return lambda importance, of, first_query: healthy(importance, of, first_query + of.l_sel)


def _last_of_ties(healthy):
    def faulty(importance: Tensor, of: geometry.Geometry, first_query: int) -> Tensor:
        favour = torch.arange(importance.shape[-1]) * 1e-6
        return healthy(importance.double() + favour, of, first_query)

    return faulty


def _worst_first(healthy):
    return lambda importance, of, first_query: healthy(1 / (1 + importance), of, first_query)


def _repeats(healthy):
    def faulty(importance: Tensor, of: geometry.Geometry, first_query: int) -> Tensor:
        slots = healthy(importance, of, first_query)
        return torch.where(slots == -1, slots[..., :1], slots)

    return faulty


def _scales_in_place(healthy):
    return lambda importance, of, first_query: healthy(importance.mul_(0.5), of, first_query)


def _by_the_batch(healthy):
    return lambda importance, of, first_query: healthy(
        importance.sum(0, keepdim=True) + 0 * importance, of, first_query
    )


def _by_memory(healthy):
    def faulty(importance: Tensor, of: geometry.Geometry, first_query: int) -> Tensor:
        flat = importance.as_strided(importance.shape, torch.empty(importance.shape).stride())
        return healthy(flat, of, first_query)

    return faulty


def _unscaled(healthy):
    return lambda q, k, ceiling: healthy(q * q.shape[-1] ** 0.25, k, ceiling)


def _overflows(healthy):
    return lambda compressed, selected, sliding, gates: healthy(
        compressed * 1e30 / 1e30 if compressed.dtype != torch.float64 else compressed, selected, sliding, gates
    )


def _writes_gates(healthy):
    def faulty(compressed, selected, sliding, gates):
        gates.data.clamp_(max=1.0)
        return healthy(compressed, selected, sliding, gates)

    return faulty


PATCHES: dict[str, Patch] = {
    "shifted": ("nsa.ops.geometry", "slots_to_mask", _shifted),
    "clamps_in_place": ("nsa.ops.geometry", "ranges_to_mask", _clamps_in_place),
    "clamps": ("nsa.ops.geometry", "ranges_to_mask", _clamps),
    "unmerged": ("nsa.ops.geometry", "slots_to_ranges", _unmerged),
    "descending": ("nsa.ops.geometry", "mask_to_slots", _descending),
    "takes_anything": ("nsa.ops.geometry", "Geometry.__post_init__", lambda healthy: lambda self: None),
    "blocks_off_by_one": (
        "nsa.ops.geometry",
        "Geometry.num_compressed",
        lambda healthy: lambda self, num_tokens: max(0, (num_tokens - self.l) // self.d),
    ),
    "window_in_the_grid": (
        "nsa.ops.geometry",
        "Geometry.window_range",
        lambda healthy: lambda self, query: (max(0, query - self.w), query + 1),
    ),
    "overlap_of_one": (
        "nsa.ops.geometry",
        "Geometry.overlap",
        lambda healthy: lambda self, compressed, block: min(1, healthy(self, compressed, block)),
    ),
    "sees_one_more": ("nsa.ops.compress.vectorized", "_Staircase.visible", _sees_one_more),
    "window_one_short": ("nsa.ops.slide.vectorized", "_window", _window_one_short),
    "softmax_of_nothing": ("nsa.ops.compress.vectorized", "compressed_attention", _softmax_of_nothing),
    "crosses_sequences": ("nsa.ops.api", "_sliding_packed", _crosses_sequences),
    "ignores_causality": ("nsa.ops.select.vectorized", "selected_attention", _ignores_causality),
    "drops_the_forced": ("nsa.ops.select.vectorized", "choose_slots", _drops_the_forced),
    "unsorted": ("nsa.ops.select.vectorized", "choose_slots", _unsorted),
    "of_the_future": ("nsa.ops.select.vectorized", "choose_slots", _of_the_future),
    "last_of_ties": ("nsa.ops.select.vectorized", "choose_slots", _last_of_ties),
    "worst_first": ("nsa.ops.select.reference", "choose_slots", _worst_first),
    "repeats": ("nsa.ops.select.reference", "choose_slots", _repeats),
    "scales_in_place": ("nsa.ops.select.vectorized", "choose_slots", _scales_in_place),
    "by_the_batch": ("nsa.ops.select.vectorized", "choose_slots", _by_the_batch),
    "by_memory": ("nsa.ops.select.vectorized", "choose_slots", _by_memory),
    "unscaled": ("nsa.ops.banded", "score", _unscaled),
    "overflows": ("nsa.ops.gate.vectorized", "mix", _overflows),
    "writes_gates": ("nsa.ops.gate.vectorized", "mix", _writes_gates),
}


def plant(name: str, replacing: Callable[[Any, str, Any], None] = setattr) -> None:
    """Put one bug in, by `setattr` or by a test's way of undoing it."""
    module, path, make = PATCHES[name]
    owner: Any = importlib.import_module(module)
    *outer, last = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    replacing(owner, last, make(getattr(owner, last)))


def faulty_nsa() -> Subject:
    """The built-in subject of a process in which slots are chosen unsorted."""
    plant("unsorted")
    return builtin_subject()


def healthy_nsa() -> Subject:
    return builtin_subject()


def _at_length(length: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: change(x) if x.shape[1] >= length else x


def _peeks(x: Tensor) -> Tensor:
    return x + 0.5 * torch.cat((x[:, 1:], x[:, -1:]), 1)


def _mixes_rows(x: Tensor) -> Tensor:
    return x + 0.5 * x.mean(0, keepdim=True)


def _knows_its_length(x: Tensor) -> Tensor:
    return x * (1 + 0.01 * x.shape[1])


def _draws(x: Tensor) -> Tensor:
    return x + _drawn(x)


class _Counter:
    calls = 0


def _drawn(x: Tensor) -> Tensor:
    _Counter.calls += 1
    return torch.full_like(x, 0.1 * (_Counter.calls % 7))


def _hangs(x: Tensor) -> Tensor:
    while x.shape[1] >= 9:  # here
        pass  # here
    return x


def _dies(x: Tensor) -> Tensor:
    if x.shape[1] >= 9:
        ctypes.string_at(0)  # here
    return x


class _NotFinite:
    @staticmethod
    def log(x: Tensor) -> Tensor:
        return x + (x - x.detach()).sqrt() * 0


class _Bare(nn.Module):
    """A function and nothing before it, so that zeros reach it as zeros."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) * self.scale


def _bare(function) -> Callable[[], nn.Module]:
    return lambda: _Bare(function)


peeks = hosting(_at_length(6, _peeks))
mixes_rows = hosting(_mixes_rows)
knows_its_length = hosting(_knows_its_length)
draws = hosting(_draws)
hangs = hosting(_hangs)
dies = hosting(_dies)
no_gradient = hosting(_NotFinite.log)
divides = _bare(lambda x: x / x.abs().sum(-1, keepdim=True))
shorter = hosting(_at_length(4, lambda x: x[:, :-1]))


def writes_its_input():
    module = hosting(lambda x: x)()
    inner = module.forward

    def forward(x: Tensor) -> Tensor:
        x *= 2
        return inner(x)

    module.forward = forward
    return module


def ignores_strides():
    module = hosting(lambda x: x)()
    inner = module.forward
    module.forward = lambda x: inner(x.as_strided(x.shape, torch.empty(x.shape).stride()))
    return module
