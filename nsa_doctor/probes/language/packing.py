"""Sequences packed into one row, which their positions separate, give what each gives alone."""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.probes.language.trial import Pair, Trial, drawn, largest_difference, plain_call
from nsa_doctor.subject.language_model import LanguageModel, packing_marks

_LENGTHS = (7, 1, 17, 23)
_CLOSE = 1e-3
_PLAIN = {
    "position_ids": "positions",
    "seq_idx": "row",
    "cu_seq_lens_q": "starts",
    "cu_seq_lens_k": "starts",
    "max_length_q": "max(lengths)",
    "max_length_k": "max(lengths)",
}


def packed(model: LanguageModel) -> Iterator[Trial]:
    """Positions restart where a sequence does, and as a flattening collator says so where the model needs more."""
    if model.first_position is None:
        raise NotApplicableError("its forward takes no position_ids")
    if not model.packs:
        raise NotApplicableError("its masks are made without position_ids, or flash attention does not serve it")
    marks = packing_marks(_LENGTHS, model.first_position)
    by_positions = lambda: _packed(model, {"position_ids": marks["position_ids"]})  # noqa: E731

    def pair() -> Pair:
        got, expected = by_positions(), _separate(model)
        if model.takes_more and not largest_difference((got, expected)) <= _CLOSE:
            return _packed(model, marks), expected
        return got, expected

    starts = list(accumulate(_LENGTHS, initial=0))
    yield Trial(
        what=f"sequences of {', '.join(map(str, _LENGTHS))} tokens packed into one row and each alone",
        pair=pair,
        lines=(
            drawn(sum(_LENGTHS), 1, 3, model),
            f"lengths, starts = {list(_LENGTHS)!r}, torch.tensor({starts!r}, dtype=torch.int32)",
            f"positions = torch.cat([torch.arange(n) for n in lengths])[None] + {model.first_position}",
            "row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None].int()",
            f"got = {plain_call(model, 'ids', **_PLAIN)}",
            f"expected = torch.cat([{plain_call(model, 'each')} for each in ids.split(lengths, dim=1)], dim=1)",
        ),
    )


def _packed(model: LanguageModel, marks: Mapping[str, Any]) -> Tensor:
    return model.logits(model.ids(sum(_LENGTHS), seed=3), **marks)


def _separate(model: LanguageModel) -> Tensor:
    parts = model.ids(sum(_LENGTHS), seed=3).split(list(_LENGTHS), dim=1)
    return torch.cat([model.logits(part) for part in parts], dim=1)
