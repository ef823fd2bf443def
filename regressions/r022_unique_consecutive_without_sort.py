"""r022 unique-consecutive-without-sort

Reported: nobody; it is in the fix that 003 reports for r003.
Symptom: none was seen. `torch.unique_consecutive` in place of `torch.unique` drops equal blocks only where they are
    neighbours: a forced block that is among the best ones too is chosen twice.
Cause: missing sort. Established by running both on the choice of every query at S=1024: the forced blocks come first
    and the best ones after them, so equal ones are hardly ever neighbours, and of a query's 16 slots up to 3 are spent
    on what is there already. The "60x speedup" of the report compares the 125M model at S=1024 with a model of one
    narrow layer at S=128, and both functions make the host wait for the device: it says nothing about either.
Check: SEL104.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsa.config import load_config
from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.ops.select import vectorized
from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"


def reproduce() -> None:
    geometry = load_config(_CONFIG).model.geometry
    generator = torch.Generator().manual_seed(0)
    for length in (128, 512, 1024, 2048):
        importance = torch.rand(1, length, 2, geometry.num_blocks(length), generator=generator)
        importance[..., 0] = 2  # a forced block that is also the best
        slots = vectorized.choose_slots(importance, geometry, 0).sort(-1).values
        is_twice = (slots.diff(dim=-1) == 0) & (slots[..., 1:] != EMPTY_SLOT)
        assert not bool(is_twice.any()), f"a block is chosen twice at S={length}"


def drops_equal_neighbours(importance: Tensor, geometry: Geometry, first_query: int) -> Tensor:
    num_queries, num_blocks = importance.shape[1], importance.shape[-1]
    current = torch.arange(first_query, first_query + num_queries) // geometry.l_sel
    forced = torch.stack((torch.zeros_like(current), (current - 1).clamp(min=0), current), dim=-1)
    hidden = torch.arange(num_blocks) > current[:, None, None]
    best = importance.masked_fill(hidden, -1).topk(min(geometry.n_sel, num_blocks), dim=-1)
    blocks = torch.where(best.values < 0, EMPTY_SLOT, best.indices)
    joined = torch.cat((forced[:, None].expand(*blocks.shape[:-1], 3), blocks), dim=-1)
    rows = [torch.unique_consecutive(row)[: geometry.n_sel] for row in joined.flatten(0, -2)]
    filled = torch.stack([pad(row, (0, geometry.n_sel - len(row)), value=EMPTY_SLOT) for row in rows])
    return filled.view(*blocks.shape[:-1], geometry.n_sel)


def planted() -> Subject:
    return faulty_layer({"nsa.ops.select.vectorized.choose_slots": drops_equal_neighbours}, _CONFIG)


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="in the choice of blocks",
            command=examine(f"{__name__}:planted", "SEL104"),
            expected=found(
                "SEL104",
                file="r022_unique_consecutive_without_sort.py",
                function="drops_equal_neighbours",
                says="choices name a block twice",
            ),
        ),
    ),
)
