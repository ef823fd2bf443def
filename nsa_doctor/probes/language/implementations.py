"""Every implementation of attention and of experts that a model offers gives the same logits."""

from collections.abc import Iterator

import torch
from torch import nn

from nsa_doctor.core.errors import Caught, NotApplicableError, attempt
from nsa_doctor.probes.language.padding import own_tokens, padded_rows, positions_of, row_lines, takes_positions
from nsa_doctor.probes.language.trial import Pair, Trial, plain_call
from nsa_doctor.subject.language_model import LanguageModel


def twins(model: LanguageModel) -> Iterator[Trial]:
    """Two rows, one of them padded on the left, by each other implementation."""
    made = {name: attempt(lambda named=named: _built(model, named)) for name, named in model.implementations.items()}
    built = {name: module for name, module in made.items() if not isinstance(module, Caught)}
    if len(built) < 1:
        raise NotApplicableError("it has one implementation alone")
    for name, module in built.items():
        yield _trial(model, name, module)


def _built(model: LanguageModel, named: dict[str, str]) -> nn.Module:
    assert model.build is not None
    return model.build(**named)


def _trial(model: LanguageModel, name: str, module: nn.Module) -> Trial:
    has_mask = "attention_mask" in model.accepts
    has_positions = takes_positions(model)

    def pair() -> Pair:
        ids, mask, _ = padded_rows(model, "left")
        named = {"attention_mask": mask} if has_mask else {}
        named |= {"position_ids": positions_of(model, mask)} if has_positions else {}
        got, expected = (model.logits(ids, module=each, **named) for each in (module, model.module))
        own = own_tokens("left")
        return torch.cat((got[0], got[1, own])), torch.cat((expected[0], expected[1, own]))

    named = ({"attention_mask": "mask"} if has_mask else {}) | ({"position_ids": "positions"} if has_positions else {})
    call = plain_call(model, "ids", **named)
    own = str(own_tokens("left").start)
    return Trial(
        what=f"{name} and the implementation that is used by default",
        pair=pair,
        lines=(
            *row_lines(model, "left"),
            f"got, expected = ([out[0], out[1, {own}:]] for out in ({call.replace('model(', 'm(')}",
            f"                 for m in (made(**{dict(model.implementations[name])!r}), model)))",
            "got, expected = torch.cat(got), torch.cat(expected)",
        ),
    )
