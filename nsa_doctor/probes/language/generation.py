"""Greedy generation takes the argmax of the logits of one pass over all that was generated before."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.probes.language.causality import require_causal
from nsa_doctor.probes.language.padding import takes_positions
from nsa_doctor.probes.language.trial import Pair, Trial, drawn, plain_call
from nsa_doctor.subject.language_model import LanguageModel

_PROMPT, _SHORT, _NEW = 19, 11, 12


def generate(model: LanguageModel) -> Iterator[Trial]:
    """A prompt, and a shorter one beside it that is padded on the left."""
    if not hasattr(model.module, "generate"):
        raise NotApplicableError("it has no generate()")
    require_causal(model)
    named = f"max_new_tokens={_NEW}, do_sample=False, pad_token_id={model.pad}"
    call = plain_call(model, "whole")

    def alone() -> Pair:
        ids = model.ids(_PROMPT, seed=4)
        return _taken_and_best(model, continued(model, ids, _NEW), _PROMPT)

    yield Trial(
        what=f"the logit of each of {_NEW} tokens that generate() takes and the highest logit of one pass",
        pair=alone,
        lines=(
            drawn(_PROMPT, 1, 4, model),
            f"whole = model.generate(ids, attention_mask=torch.ones_like(ids), {named})",
            f"logits = {call}[:, {_PROMPT - 1}:-1]",
            f"got, expected = logits.gather(-1, whole[:, {_PROMPT}:, None])[..., 0], logits.amax(-1)",
        ),
    )
    if "attention_mask" not in model.accepts or not takes_positions(model):
        return

    def beside() -> Pair:
        short = model.ids(_SHORT, seed=5)
        ids = torch.cat((model.ids(_PROMPT, seed=4), torch.cat((_pads(model), short), dim=1)))
        mask = torch.ones_like(ids)
        mask[1, : _PROMPT - _SHORT] = 0
        whole = continued(model, ids, _NEW, mask)[1:, _PROMPT - _SHORT :]
        return _taken_and_best(model, whole, _SHORT)

    yield Trial(
        what="the same of a prompt that is padded on the left, beside a longer one",
        pair=beside,
        lines=(
            drawn(_PROMPT, 1, 4, model),
            drawn(_SHORT, 1, 5, model, "short"),
            f"pads = torch.full((1, {_PROMPT - _SHORT}), {model.pad})",
            "ids = torch.cat((ids, torch.cat((pads, short), dim=1)))",
            f"mask = torch.ones_like(ids); mask[1, :{_PROMPT - _SHORT}] = 0",
            f"whole = model.generate(ids, attention_mask=mask, {named})[1:, {_PROMPT - _SHORT}:]",
            f"logits = {call}[:, {_SHORT - 1}:-1]",
            f"got, expected = logits.gather(-1, whole[:, {_SHORT}:, None])[..., 0], logits.amax(-1)",
        ),
    )


def continued(model: LanguageModel, ids: Tensor, num_tokens: int, mask: Tensor | None = None) -> Tensor:
    """Ids [B, T + num_tokens] with their greedy continuation."""
    module: Any = model.module
    mask = torch.ones_like(ids) if mask is None else mask
    made: Tensor = module.generate(
        ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False, pad_token_id=model.pad
    )
    return made


def _taken_and_best(model: LanguageModel, whole: Tensor, prompt: int) -> Pair:
    logits = model.logits(whole)[:, prompt - 1 : -1]
    return logits.gather(-1, whole[:, prompt:, None])[..., 0], logits.amax(-1)


def _pads(model: LanguageModel) -> Tensor:
    return torch.full((1, _PROMPT - _SHORT), model.pad)
