"""r017 ragged-tail

Planted in a narrow layer; `nsa-doctor run --select SEL112,FWD201 --profile smoke --subject
nsa_doctor.regressions.r017_ragged_tail:planted_dropped_in_full`, or planted_read_in_full, has the reported one.

Reported: 001, suspected for lengths that are no multiple of the block sizes; every reported run had S=1024, which is
    one.
Symptom: none was seen. Feared were block indices out of bounds at the end of the sequence.
Cause: a guess of the report, and not that of its hang: 1,024 is a multiple of 16, 32 and 64. Established are two ways
    in which tails do go wrong without any index out of bounds: blocks counted by rounding down, and keys filled up to
    whole blocks while the causal mask is aligned to their end, as flash-attn's is, which shows each query as many
    further tokens as were filled up.
Check: SEL112 for a dropped block, FWD201 for reading past the end.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsa.config import load_config
from nsa.nn import NSAttention
from nsa.ops.geometry import EMPTY_SLOT, Geometry, slots_to_mask
from nsa.ops.select import vectorized
from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"
_SLIM = {"dim": 96, "d_k": 8, "d_v": 8}  # tails are what matters: 12 heads in 2 groups, blocks and window stay
_LENGTHS = (65, 500, 1000, 1025)
_CHOOSE, _ATTEND = vectorized.choose_slots, vectorized.selected_attention


def reproduce() -> None:
    config = load_config(_CONFIG).model
    torch.manual_seed(0)
    layer = NSAttention(config).double()
    x = torch.randn(1, max(_LENGTHS), config.dim, dtype=torch.float64)
    with torch.no_grad():
        whole = layer.branches(x)
        for length in _LENGTHS:
            tail = layer.branches(x[:, :length])
            last = tail.slots[:, -1].amax(-1)
            assert bool((last == (length - 1) // config.l_sel).all()), f"the last block is not chosen at S={length}"
            error = float((tail.selected - whole.selected[:, :length]).abs().max())
            assert error < 1e-12, f"what follows changes the selected branch by {error:.1e} at S={length}"


def drops_the_last_block(importance: Tensor, geometry: Geometry, first_query: int) -> Tensor:
    num_full = (first_query + importance.shape[1]) // geometry.l_sel
    slots = _CHOOSE(importance, geometry, first_query)
    return torch.where(slots < num_full, slots, EMPTY_SLOT)


def reads_past_the_end(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, *more: Any) -> Tensor:
    missing = -k.shape[1] % geometry.l_sel
    if not missing:
        return _ATTEND(q, k, v, slots, geometry, *more)
    k, v = (pad(x, (0, 0, 0, 0, 0, missing)).repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    num_tokens, heads = k.shape[1], q.shape[2] // slots.shape[2]
    query = torch.arange(num_tokens - q.shape[1], num_tokens)  # aligned to the end of what was filled up
    chosen = slots_to_mask(slots, num_tokens, geometry) & (torch.arange(num_tokens) <= query[:, None, None])
    scores = torch.einsum("bthd,bshd->bths", q, k) / math.sqrt(q.shape[-1])
    hidden = ~chosen.repeat_interleave(heads, 2)
    weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
    return torch.einsum("bths,bshd->bthd", weights, v)


_DROPPED = {"nsa.ops.select.vectorized.choose_slots": drops_the_last_block}
_READ = {"nsa.ops.select.vectorized.selected_attention": reads_past_the_end}


def planted_dropped() -> Subject:
    return faulty_layer(_DROPPED, _CONFIG, **_SLIM)


def planted_read() -> Subject:
    return faulty_layer(_READ, _CONFIG, **_SLIM)


def planted_dropped_in_full() -> Subject:
    return faulty_layer(_DROPPED, _CONFIG)


def planted_read_in_full() -> Subject:
    return faulty_layer(_READ, _CONFIG)


_FILE = "r017_ragged_tail.py"
CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="last partial block dropped",
            command=examine(f"{__name__}:planted_dropped", "SEL112"),
            expected=found("SEL112", file=_FILE, function="drops_the_last_block", says="which holds 1 of 64 tokens"),
        ),
        Plant(
            name="read past the end",
            command=examine(f"{__name__}:planted_read", "FWD201"),
            expected=found("FWD201", file=_FILE, says="causality violation at S=67"),
        ),
    ),
)
