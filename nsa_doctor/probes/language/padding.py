"""A row with padding gives at its own tokens what it gives alone."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.probes.language.feeding import fed
from nsa_doctor.probes.language.trial import LENGTH, Pair, Trial, drawn, has_logits, plain_answer, plain_call
from nsa_doctor.subject.language_model import LanguageModel

Side = Literal["left", "right"]
_SHORT = 27
_PAD = LENGTH - _SHORT
_PROMPT = 25


def padding(model: LanguageModel) -> Iterator[Trial]:
    """Padding on the right, on the left, and on the left of a prompt that is continued through the cache.

    A forward that is given no positions counts the padding on the left as tokens: nothing is promised there.
    """
    if "attention_mask" not in model.accepts:
        raise NotApplicableError("its forward takes no attention_mask")
    yield _in_one_pass(model, "right")
    if not takes_positions(model):
        return
    yield _in_one_pass(model, "left")
    if model.cache is not None and not model.is_bidirectional:
        yield _continued(model)


def padded_rows(model: LanguageModel, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of a long and a short row [2, S], the mask of tokens, and the short row alone [1, s]."""
    ids, short = model.ids(LENGTH, 2), model.ids(_SHORT, seed=2)
    mask, own = torch.ones_like(ids), own_tokens(side)
    ids[1], mask[1] = model.pad, 0
    ids[1, own], mask[1, own] = short[0], 1
    return ids, mask, short


def own_tokens(side: Side) -> slice:
    """Where the short row's own tokens stand."""
    return slice(_PAD, None) if side == "left" else slice(_SHORT)


def positions_of(model: LanguageModel, mask: Tensor) -> Tensor:
    """Positions that count own tokens alone, as `generate` hands them over."""
    return (mask.cumsum(-1) - 1).clamp_min(0) + (model.first_position or 0)


def row_lines(model: LanguageModel, side: Side) -> tuple[str, ...]:
    """Plain Python that sets `ids`, `mask`, `positions` and `short`."""
    own = f"{_PAD}:" if side == "left" else f":{_SHORT}"
    return (
        drawn(LENGTH, 2, 0, model),
        drawn(_SHORT, 1, 2, model, "short"),
        f"mask = torch.ones_like(ids); ids[1], mask[1] = {model.pad}, 0; ids[1, {own}], mask[1, {own}] = short[0], 1",
        f"positions = (mask.cumsum(-1) - 1).clamp_min(0) + {model.first_position or 0}",
    )


def _in_one_pass(model: LanguageModel, side: Side) -> Trial:
    def pair() -> Pair:
        ids, mask, short = padded_rows(model, side)
        together = model.logits(ids, attention_mask=mask, **_positions(model, mask))
        return together[1:, own_tokens(side)], model.logits(short)

    named = {"attention_mask": "mask"} | ({"position_ids": "positions"} if takes_positions(model) else {})
    own = f"{_PAD}:" if side == "left" else f":{_SHORT}"
    return Trial(
        what=f"a row padded on the {side} and the same row alone",
        pair=pair,
        lines=(
            *row_lines(model, side),
            f"got = {plain_call(model, 'ids', **named)}[1:, {own}]",
            f"expected = {plain_call(model, 'short')}",
        ),
    )


def _continued(model: LanguageModel) -> Trial:
    sizes = [_PROMPT, *[1] * (LENGTH - _PROMPT)]

    def pair() -> Pair:
        ids, mask, short = padded_rows(model, "left")
        together = fed(model, ids, sizes, attention_mask=mask, **_positions(model, mask))
        return together[1:, _PAD:], model.logits(short)

    named = {"attention_mask": "mask[:, :end]", "use_cache": "True", str(model.cache): "cache"}
    named |= {"position_ids": "positions[:, end - part.shape[1]:end]"} if takes_positions(model) else {}
    return Trial(
        what="a prompt padded on the left and continued token by token, and the same row alone in one pass",
        pair=pair,
        lines=(
            *row_lines(model, "left"),
            "got, cache, end = [], None, 0",
            f"for part in ids.split({sizes!r}, dim=1):",
            "    end += part.shape[1]",
            f"    out = {plain_answer(model, 'part', **named)}",
            f"    cache, logits = out.{model.cache}, {'out.logits' if has_logits(model) else 'out[0]'}",
            "    got.append(logits[:, -part.shape[1]:])",
            f"got = torch.cat(got, dim=1)[1:, {_PAD}:]",
            f"expected = {plain_call(model, 'short')}",
        ),
    )


def takes_positions(model: LanguageModel) -> bool:
    """Whether positions can be given as the model counts them."""
    return model.first_position is not None


def _positions(model: LanguageModel, mask: Tensor) -> dict[str, Any]:
    return {"position_ids": positions_of(model, mask)} if takes_positions(model) else {}
