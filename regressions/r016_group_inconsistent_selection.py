"""r016 group-inconsistent-selection

Planted in a narrow layer; `nsa-doctor run --select SEL108 --profile smoke --subject
nsa_doctor.regressions.r016_group_inconsistent_selection:planted_in_full` has the reported one.

Reported: 001, suspected for 12 heads in 2 KV groups with m7c_125m_fast_log; nobody saw it.
Symptom: heads of one KV group choose different blocks.
Cause: a guess of the report, offered as what might make ranges invalid. Established: it cannot, since every head's
    choice is a valid one; nothing raises, and loss and shapes are as they should be. It costs what the group is for,
    one load of a block for its 6 heads, and gives other results than one choice per group.
Check: SEL108.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa.config import load_config
from nsa.nn import NSAttention
from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.ops.score import vectorized as score
from nsa.ops.select import vectorized
from nsa.ops.tiles import from_streams
from nsa_doctor.adapters.nsa_anatomy import anatomy
from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"
_SLIM = {"dim": 96, "d_k": 8, "d_v": 8}  # choices are what matters: 12 heads in 2 groups and all blocks stay
_ATTEND = vectorized.selected_attention


def reproduce() -> None:
    config = load_config(_CONFIG).model
    assert (config.n_heads, config.n_kv_groups) == (12, 2)
    torch.manual_seed(0)
    layer, x = NSAttention(config), torch.randn(1, 1152, config.dim)
    inner = anatomy(layer, x.requires_grad_())
    assert inner["slots"].shape[2] == 2, "there is not one choice per group"
    read = {}
    for head in (0, 1, 5, 6, 7, 11):  # 18 blocks to choose 16 of
        (gradient,) = torch.autograd.grad(inner["selected"][0, -1, head].sum(), inner["v_sel"], retain_graph=True)
        read[head] = (gradient[0, :, head // 6] != 0).any(-1)
        assert 15 * 64 <= int(read[head].sum()) <= 16 * 64
        assert torch.equal(read[head], read[head // 6 * 6]), f"head {head} reads other tokens than its group"


@dataclass(frozen=True)
class ChoicePerHead:
    geometry: Geometry
    first_query: int

    def of_first_block(self, like: Tensor, _num_groups: int) -> Tensor:
        slots = torch.full((*like.shape[:3], self.geometry.n_sel), EMPTY_SLOT)
        slots[..., 0].zero_()
        return slots

    def __call__(self, probabilities: Tensor, first: int) -> Tensor:
        position = self.first_query + first
        num_blocks = self.geometry.num_blocks(position + probabilities.shape[1])
        importance = score.group_importance(probabilities, num_blocks, self.geometry)
        return vectorized.choose_slots(importance, self.geometry, position)


def probabilities_per_head(weights: Tensor, inverse: Tensor, groups: int) -> Tensor:
    return from_streams(weights * inverse, groups)


def attend_per_head(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, *more: Any) -> Tensor:
    heads = slots.shape[2] // k.shape[2]
    return _ATTEND(q, k.repeat_interleave(heads, 2), v.repeat_interleave(heads, 2), slots, geometry, *more)


_SEAMS = {
    "nsa.ops.api.BlockChoice": ChoicePerHead,
    "nsa.ops.banded._group_sum": probabilities_per_head,
    "nsa.ops.select.vectorized.selected_attention": attend_per_head,
}


def planted() -> Subject:
    return faulty_layer(_SEAMS, _CONFIG, **_SLIM)


def planted_in_full() -> Subject:
    return faulty_layer(_SEAMS, _CONFIG)


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="a choice for each head",
            command=examine(f"{__name__}:planted", "SEL108"),
            expected=found(
                "SEL108",
                file="banded.py",  # which writes down what each tile has chosen
                function="banded_forward",
                says="heads 0 and . of group 0 read different tokens",
            ),
        ),
    ),
)
