"""r021 clamp-writes-the-callers-ranges

Reported: nobody; it is in the fix that 000 and 002 print for r001.
Symptom: none was seen. After `r = ranges[b, g].to(dtype=torch.int64)`, `r[:, 0].clamp_(0, S_kv)` writes into the
    caller's ranges: what was out of bounds, or marked a slot as empty, is another valid range from then on.
Cause: established by running it: `.to(int64)` of int64 ranges returns the same memory, and so do indexing and slicing;
    of int32 ranges it copies, so a test with those sees nothing. Empty slots (-1, -1) become (0, 0) by it, and an
    inverted pair stays inverted, so that the write hides the evidence of what made it and repairs nothing.
Check: FWD208 on the seams `attend` and `select`.
"""

from typing import Any

import torch
from torch import Tensor

from nsa.config import load_config
from nsa.ops.geometry import EMPTY_SLOT, Geometry, ranges_to_mask, slots_to_ranges
from nsa.ops.select import reference, vectorized
from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"
_ATTEND, _CHOOSE = vectorized.selected_attention, vectorized.choose_slots


def reproduce() -> None:
    config = load_config(_CONFIG).model
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 192, heads, 64, generator=generator) for heads in (12, 2, 2))
    for dtype in (torch.int64, torch.int32):
        slots = _CHOOSE(torch.rand(1, 192, 2, 3, generator=generator), config.geometry, 0).to(dtype)
        assert bool((slots == EMPTY_SLOT).any()), "there is no empty slot to be written over"
        ranges = slots_to_ranges(slots, 192, config.geometry)
        importance = torch.rand(1, 192, 2, 3, generator=generator)
        for call, given in (
            (lambda given: vectorized.choose_slots(given, config.geometry, 0), importance),
            (lambda given: vectorized.selected_attention(q, k, v, given, config.geometry), slots),
            (lambda given: reference.selected_attention(q, k, v, given, config.geometry), slots),
            (lambda given: slots_to_ranges(given, 192, config.geometry), slots),
            (lambda given: ranges_to_mask(given, 192), ranges),
        ):
            own = given.clone()
            call(own)
            assert torch.equal(own, given), f"slots or ranges in {dtype} are overwritten"


def clamps_slots(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, *more: Any) -> Tensor:
    num_blocks = geometry.num_blocks(k.shape[1])
    first, others = slots.to(torch.int64)[..., :1], slots.to(torch.int64)[..., 1:]
    first.clamp_(0, num_blocks)
    others.clamp_(EMPTY_SLOT + 1, num_blocks)
    return _ATTEND(q, k, v, slots, geometry, *more)


def raises_forced_block(importance: Tensor, geometry: Geometry, first_query: int) -> Tensor:
    ranked = importance.to(torch.float32)
    ranked[..., 0].clamp_(min=2.0)
    return _CHOOSE(ranked, geometry, first_query)


def planted_in_attention() -> Subject:
    return faulty_layer({"nsa.ops.select.vectorized.selected_attention": clamps_slots}, _CONFIG)


def planted_in_choice() -> Subject:
    return faulty_layer({"nsa.ops.select.vectorized.choose_slots": raises_forced_block}, _CONFIG)


_FILE = "r021_clamp_writes_the_callers_ranges.py"
CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="in the attention over chosen blocks",
            command=examine(f"{__name__}:planted_in_attention", "FWD208"),
            expected=found("FWD208", file=_FILE, function="clamps_slots", says="of slots"),
        ),
        Plant(
            name="in the choice",
            command=examine(f"{__name__}:planted_in_choice", "FWD208"),
            expected=found("FWD208", function="raises_forced_block", says="of importance of select"),
        ),
    ),
)
