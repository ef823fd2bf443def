"""r001 range-iteration-hang

Reported: 000 and 001 with m7c_125m_fast_log at S=1024, batch 1, with synthetic and real data alike.
Symptom: training hangs in the forward pass of step 2, the CPU at 100 %; the stack ends in `for s, e in r.tolist()` of
    `_sdpa_over_ranges`.
Cause: the report's "invalid or infinite ranges" is a guess, and cannot be what it says. Established by running it: `r`
    is [n, 2] integers, so the loop ends after n=16 rounds whatever they hold; no integer is NaN or infinite; a
    reversed pair is skipped by `if e > s`; of a huge one `arange` raises or fills the memory. What looks like a hang
    there is a step of minutes: 1,024 tokens x 12 layers x 2 groups x up to 16 ranges, each with operations started one
    by one. 000 shows 7 tokens/s after the fix, 146 s a step; 15 more and the watchdog of 180 s dumps. `tolist` is
    where the host waits for what was started, so the dump names it. A loop that does not end takes a walk that need
    not advance: `while position != end`.
Check: HNG101 for a walk that never advances, SEL101 for negative and huge blocks, HNG201 for work per token and range.
"""

import math
from typing import Any

import torch
from torch import Tensor

from nsa.config import load_config
from nsa.ops.geometry import EMPTY_SLOT, Geometry, ranges_to_mask, slots_to_ranges
from nsa.ops.select import vectorized
from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"
_ATTEND, _CHOOSE = vectorized.selected_attention, vectorized.choose_slots
_LENGTHS = (128, 512, 1024, 2048)


def reproduce() -> None:
    geometry = load_config(_CONFIG).model.geometry
    generator = torch.Generator().manual_seed(0)
    for length in _LENGTHS:
        importance = torch.rand(1, length, 2, geometry.num_blocks(length), generator=generator)
        slots = vectorized.choose_slots(importance, geometry, 0)
        assert int(slots.min()) >= EMPTY_SLOT, f"a slot is {int(slots.min())} at S={length}"
        ranges = slots_to_ranges(slots, length, geometry)
        start, end = ranges.unbind(-1)
        assert ranges.shape == (1, length, 2, 16, 2)
        assert bool(((start >= 0) & (end <= length)).all()), f"a range is out of bounds at S={length}"
        assert bool(((end > start) | (end == 0) & (start == 0)).all()), f"a range ends before it starts at S={length}"
    for pair in ([64, 0], [-64, 64], [0, 1 << 62], [torch.iinfo(torch.int64).min, 64]):
        try:
            ranges_to_mask(torch.tensor([pair]), 1024)
        except ValueError as error:
            assert str(pair) in str(error)  # noqa: PT017 (the sentence is what is looked at)
        else:
            raise AssertionError(f"the range {pair} is accepted")


def walks_its_ranges(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, *more: Any) -> Tensor:
    num_tokens = k.shape[1]
    start = torch.where(slots == EMPTY_SLOT, num_tokens + 1, slots * geometry.l_sel)
    end = (start + geometry.l_sel).clamp(max=num_tokens)  # before the start, of an empty slot
    for first, last in torch.stack((start, end), dim=-1)[0, 0, 0].tolist():
        position = first
        while position != last:
            position += max(0, min(geometry.d, last - position))
    return _ATTEND(q, k, v, slots, geometry, *more)


def marks_empty_slots_as_nan(importance: Tensor, geometry: Geometry, first_query: int) -> Tensor:
    slots = _CHOOSE(importance, geometry, first_query).double()
    return slots.masked_fill(slots == EMPTY_SLOT, torch.nan).to(torch.int64)


def attends_range_by_range(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, *more: Any) -> Tensor:
    (num_rows, num_queries, num_heads), (num_tokens, groups) = q.shape[:3], k.shape[1:3]
    ranges = slots_to_ranges(slots, num_tokens, geometry)
    outputs = []
    for row in range(num_rows):
        for query in range(num_queries):
            newest = num_tokens - num_queries + query
            for group in range(groups):
                parts = []
                for start, end in ranges[row, query, group].tolist():
                    if end > start:
                        parts.append(torch.arange(start, min(end, newest + 1), device=k.device))
                index = torch.cat(parts)
                heads = q[row, query].unflatten(0, (groups, -1))[group]
                scores = heads @ k[row, index, group].T / math.sqrt(q.shape[-1])
                outputs.append(scores.softmax(-1) @ v[row, index, group])
    return torch.stack(outputs).view(num_rows, num_queries, num_heads, v.shape[-1])


def planted_walk() -> Subject:
    return faulty_layer({"nsa.ops.select.vectorized.selected_attention": walks_its_ranges}, _CONFIG)


def planted_blocks() -> Subject:
    return faulty_layer({"nsa.ops.select.vectorized.choose_slots": marks_empty_slots_as_nan}, _CONFIG)


def planted_loop() -> Subject:
    return faulty_layer({"nsa.ops.select.vectorized.selected_attention": attends_range_by_range}, _CONFIG)


_FILE = "r001_range_iteration_hang.py"
_SWEEP = ("sweep", "--seq", "1024", "--forward-only", "--timeout", "1.5")  # each length that hangs takes a process
CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="a walk that never advances on a reversed pair",
            command=lambda folder: [*_SWEEP, "--subject", f"{__name__}:planted_walk"],
            expected=found("HNG101", file=_FILE, function="walks_its_ranges"),
        ),
        Plant(
            name="unclamped negative and huge ranges",
            command=examine(f"{__name__}:planted_blocks", "SEL101"),
            expected=found("SEL101", file=_FILE, function="marks_empty_slots_as_nan", says="name a block outside"),
        ),
        Plant(
            name="Python work for every token and range",
            command=examine(f"{__name__}:planted_loop", "HNG201,PRF101"),
            expected=found("HNG201", file=_FILE, function="attends_range_by_range", says="times per token"),
        ),
    ),
)
