"""r018 batched-differs-from-sequential

Planted in a narrow layer; `nsa-doctor run --select DEC101,FWD301 --profile smoke --subject
nsa_doctor.regressions.r018_batched_differs_from_sequential:planted_in_full` has the reported one.

Reported: 003, which calls NSA_PREFILL_BATCHED=1 "critical for performance"; no comparison of the two was made.
Symptom: none was seen; a flag for speed must not change results.
Cause: nothing was wrong as far as anybody looked. Established here: prompts taken in at once and token by token differ
    by rounding alone, 1e-12 in float64, and choose the same blocks. A mask that is off by one in the batched path
    alone leaves every step of decoding right, and every state that decoding starts from wrong.
Check: DEC101 compares the two ways; FWD301 names the branch that is wrong.
"""

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from nsa.config import load_config
from nsa.nn import NSAttention, prefill
from nsa.ops.banded import banded_attention
from nsa.ops.geometry import Geometry
from nsa.ops.slide import vectorized
from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"
# The mask is what matters: 12 heads in 2 groups stay; small blocks and a short window need few tokens.
_SLIM = {"dim": 96, "d_k": 8, "d_v": 8, "l": 8, "d": 4, "l_sel": 8, "n_sel": 4, "w": 16}
_SLIDE = vectorized.sliding_attention


def reproduce() -> None:
    config = load_config(_CONFIG).model
    torch.manual_seed(0)
    layer, x = NSAttention(config).double(), torch.randn(1, 73, config.dim, dtype=torch.float64)
    outputs, following = [], []
    for flag in ("0", "1"):
        cache = layer.new_cache()
        with patch.dict("os.environ", {"NSA_PREFILL_BATCHED": flag}), torch.no_grad():
            outputs.append(prefill(layer, x[:, :-1], cache))
            following.append(layer(x[:, -1:], cache))
    for what, (one_by_one, at_once) in (("the prompt's output", outputs), ("the next token's", following)):
        error = float((one_by_one - at_once).abs().max())
        assert error < 1e-12, f"{what} differs by {error:.1e} between NSA_PREFILL_BATCHED=0 and 1"


@dataclass(frozen=True)
class Shifted:
    """The window, one token too old: a query does not see itself, and sees one token that it should not."""

    first_query: int
    w: int
    max_queries: int = 64

    def keys(self, queries: slice) -> slice:
        return slice(max(0, self.first_query + queries.start - self.w), self.first_query + queries.stop)

    def seen_by_all(self, queries: slice) -> slice:
        return slice(max(0, self.first_query + queries.stop - 1 - self.w), self.first_query + queries.start)

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        age = self.first_query + query - key
        return (age >= 1) & (age < self.w + 1)


def slides_off_by_one(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, *more: Any) -> Tensor:
    if q.shape[1] == 1:
        return _SLIDE(q, k, v, geometry, *more)
    return banded_attention(q, k, v, Shifted(k.shape[1] - q.shape[1], geometry.w)).out + 0


_SEAMS = {"nsa.ops.slide.vectorized.sliding_attention": slides_off_by_one}


def planted() -> Subject:
    return faulty_layer(_SEAMS, _CONFIG, **_SLIM)


def planted_in_full() -> Subject:
    return faulty_layer(_SEAMS, _CONFIG)


_FILE = "r018_batched_differs_from_sequential.py"
CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="at once and token by token",
            command=examine(f"{__name__}:planted", "DEC101"),
            expected=found("DEC101", says="decoding token by token"),
        ),
        Plant(
            name="against the equations",
            command=examine(f"{__name__}:planted", "FWD301"),
            expected=found("FWD301", file=_FILE, function="slides_off_by_one", says="the sliding branch differs"),
        ),
    ),
)
