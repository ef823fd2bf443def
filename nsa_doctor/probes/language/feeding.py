"""Feeding a sequence in parts through the cache gives the logits of one pass over all of it."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.probes.language.causality import require_causal
from nsa_doctor.probes.language.trial import LENGTH, ROWS, Pair, Trial, drawn, has_logits, plain_answer, plain_call
from nsa_doctor.subject.language_model import LanguageModel, logits_of

_PROMPT = 21
_FEW = 8
_CHUNKS = ((13, 7, 9, 1, 10), (5, 9, 26))


def decode(model: LanguageModel) -> Iterator[Trial]:
    """A prompt and then one token at a time, with positions and without."""
    require_cache(model)
    require_causal(model)
    yield from _both_ways(model, [_PROMPT] + [1] * (LENGTH - _PROMPT))
    yield in_parts(model, [1] * _PROMPT, gives_positions=False)


def chunk(model: LanguageModel) -> Iterator[Trial]:
    """Several tokens at a time, with positions and without."""
    require_cache(model)
    require_causal(model)
    for sizes in _CHUNKS:
        yield from _both_ways(model, sizes)


def _both_ways(model: LanguageModel, sizes: Sequence[int]) -> Iterator[Trial]:
    if model.first_position is not None:
        yield in_parts(model, sizes, gives_positions=True)
    yield in_parts(model, sizes, gives_positions=False)


def require_cache(model: LanguageModel) -> None:
    """NotApplicableError for a model that answers no cache."""
    if model.cache is None:
        raise NotApplicableError("its forward answers no cache that it takes back")


def fed(model: LanguageModel, ids: Tensor, sizes: Sequence[int], **named: Any) -> Tensor:
    """Logits of all tokens, fed in parts of these sizes; `named` are cut to what has been fed, as masks are."""
    assert model.cache is not None
    logits: list[Tensor] = []
    cache: dict[str, Any] = {}
    start = 0
    for part in ids.split(list(sizes), dim=1):
        start += part.shape[1]
        cut = {name: value[:, :start] for name, value in named.items() if name == "attention_mask"}
        cut |= {name: value[:, start - part.shape[1] : start] for name, value in named.items() if name not in cut}
        answer = model.answer(part, use_cache=True, **cache, **cut)
        held = model.cache_in(answer)
        cache = {} if held is None else {model.cache: held}
        logits.append(logits_of(answer)[:, -part.shape[1] :])
    return torch.cat(logits, dim=1)


def fed_lines(model: LanguageModel, sizes: Sequence[int], *, gives_positions: bool) -> tuple[str, ...]:
    """Plain Python that feeds `ids` in parts and sets `got`."""
    named = {"use_cache": "True", str(model.cache): "cache"}
    first = model.first_position or 0
    counted = f"torch.arange(end - part.shape[1], end)[None]{f' + {first}' if first else ''}"
    named |= {"position_ids": counted} if gives_positions else {}
    return (
        "got, cache, end = [], None, 0",
        f"for part in ids.split({list(sizes)!r}, dim=1):",
        "    end += part.shape[1]",
        f"    out = {plain_answer(model, 'part', **named)}",
        f"    cache, logits = out.{model.cache}, {'out.logits' if has_logits(model) else 'out[0]'}",
        "    got.append(logits[:, -part.shape[1]:])",
        "got = torch.cat(got, dim=1)",
    )


def in_parts(model: LanguageModel, sizes: Sequence[int], *, gives_positions: bool) -> Trial:
    """A trial of feeding in parts of these sizes, with position_ids or without."""

    def pair() -> Pair:
        ids = model.ids(sum(sizes), ROWS)
        positions = (
            {"position_ids": torch.arange(sum(sizes))[None] + (model.first_position or 0)} if gives_positions else {}
        )
        return fed(model, ids, sizes, **positions), model.logits(ids)

    few = ", ".join(map(str, sizes if len(sizes) < _FEW else [*sizes[:3], "…"]))
    given = "with" if gives_positions else "without"
    return Trial(
        what=f"fed through the cache {given} position_ids in parts of {few} tokens, and in one pass,",
        pair=pair,
        lines=(
            drawn(sum(sizes), ROWS, 0, model),
            *fed_lines(model, sizes, gives_positions=gives_positions),
            f"expected = {plain_call(model, 'ids')}",
        ),
    )
