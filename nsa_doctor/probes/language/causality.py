"""Logits do not depend on later tokens, on the length, or on the other rows of a batch."""

from collections.abc import Iterator

import torch

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.probes.language.trial import LENGTH, ROWS, Pair, Trial, drawn, plain_call
from nsa_doctor.subject.language_model import LanguageModel

_CHANGED_FROM, _LEFT_OUT_FROM = (1, 17, 33), (9, 24)
_ROWS_TOGETHER = 3


def causal(model: LanguageModel) -> Iterator[Trial]:
    """Later tokens changed, and left out, leave logits as they are."""
    require_causal(model)
    yield from (_changed(model, cut) for cut in _CHANGED_FROM)
    yield from (_left_out(model, cut) for cut in _LEFT_OUT_FROM)


def batch(model: LanguageModel) -> Iterator[Trial]:
    """Each row of a batch gives what it gives alone."""

    def pair() -> Pair:
        ids = model.ids(LENGTH, _ROWS_TOGETHER)
        return model.logits(ids), torch.cat([model.logits(row) for row in ids.split(1)])

    alone = plain_call(model, "row")
    yield Trial(
        what=f"{_ROWS_TOGETHER} rows together and each alone",
        pair=pair,
        lines=(
            drawn(LENGTH, _ROWS_TOGETHER, 0, model),
            f"got = {plain_call(model, 'ids')}",
            f"expected = torch.cat([{alone} for row in ids.split(1)])",
        ),
    )


def require_causal(model: LanguageModel) -> None:
    """NotApplicableError for a model whose configuration says that it reads later tokens."""
    if model.is_bidirectional:
        raise NotApplicableError("its configuration says that it reads later tokens")


def _changed(model: LanguageModel, cut: int) -> Trial:
    def pair() -> Pair:
        ids, other = model.ids(LENGTH, ROWS), model.ids(LENGTH, ROWS, seed=1)
        changed = torch.cat((ids[:, :cut], other[:, cut:]), dim=1)
        return model.logits(changed)[:, :cut], model.logits(ids)[:, :cut]

    return Trial(
        what=f"other tokens from {cut} on change the logits before",
        pair=pair,
        lines=(
            drawn(LENGTH, ROWS, 0, model),
            drawn(LENGTH, ROWS, 1, model, "other"),
            f"changed = torch.cat((ids[:, :{cut}], other[:, {cut}:]), dim=1)",
            f"got = {plain_call(model, 'changed')}[:, :{cut}]",
            f"expected = {plain_call(model, 'ids')}[:, :{cut}]",
        ),
    )


def _left_out(model: LanguageModel, cut: int) -> Trial:
    def pair() -> Pair:
        ids = model.ids(LENGTH, ROWS)
        return model.logits(ids[:, :cut]), model.logits(ids)[:, :cut]

    return Trial(
        what=f"the first {cut} tokens alone and with later ones",
        pair=pair,
        lines=(
            drawn(LENGTH, ROWS, 0, model),
            f"got = {plain_call(model, f'ids[:, :{cut}]')}",
            f"expected = {plain_call(model, 'ids')}[:, :{cut}]",
        ),
    )
