"""A model of transformers as a subject: what its forward takes makes the parts that can be examined."""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.adapter import Adapter
from nsa_doctor.adapters.hugging_face.build import build_model
from nsa_doctor.adapters.hugging_face.small_sizes import POSITIONS
from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.subject.language_model import LanguageModel, logits_of, packing_marks

_LONGEST = 3 * POSITIONS // 4


def adapter_of(name: str, seed: int, size: str | None = None) -> Adapter:
    """How a model type or a configuration file is examined; what it has not is said in notes.

    size: "real" for the sizes that its configuration has, whose longest sequence is found out; else small ones.
    """
    is_small = size != "real"
    model = build_model(name, seed, is_small=is_small)
    assert model.build is not None
    return Adapter(
        make=model.build if is_small else lambda: copy.deepcopy(model.module),  # its weights are drawn once
        call=lambda module, ids: _own_logits(model, model.answer(_theirs(model, ids), module=module)),
        input="tokens",
        width=model.tokens[1] - model.tokens[0],
        max_length=_LONGEST if is_small else None,
        seams=dict(_seams(model)),
        spec=(Declaration.BIDIRECTIONAL.value,) if model.is_bidirectional else (),
        notes=tuple(_notes(model, is_small=is_small)),
    )


def _seams(model: LanguageModel) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "twins", lambda device, dtype: _twins(model)
    if model.cache is not None:
        yield "prefill", lambda module, ids: _fed(model, module, ids, None)
        yield "step", lambda module, ids, cache: _fed(model, module, ids, cache)
    if not _why_not_packed(model):
        yield "packed", lambda module, ids, starts: _packed(model, module, ids, starts)
    if model.cache is not None and hasattr(model.module, "generate"):
        yield "generate", lambda module, ids, num_tokens: _generated(model, module, ids, num_tokens)


def _notes(model: LanguageModel, *, is_small: bool) -> Iterator[str]:
    number = sum(parameter.numel() for parameter in model.module.parameters())
    kind = type(model.module).__name__
    sized = f"a small {kind}" if is_small else f"a {kind} of its real sizes, {number / 1e6:.0f} million parameters,"
    yield f"{sized} with random weights, which are scaled up so that attention is uneven"
    if model.cache is None:
        yield "decoding is not examined: its forward answers no cache that it takes back"
    if why := _why_not_packed(model):
        yield f"packed rows are not examined: {why}"


def _theirs(model: LanguageModel, ids: Tensor) -> Tensor:
    """The model's own ids of what is drawn, which leaves its special tokens out."""
    return ids + model.tokens[0]


def _own_logits(model: LanguageModel, answer: Any) -> Tensor:
    return logits_of(answer)[..., model.tokens[0] :]


@torch.no_grad()
def _fed(model: LanguageModel, module: nn.Module, ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
    given = {} if cache is None else {str(model.cache): cache}
    answer = model.answer(_theirs(model, ids), module=module, use_cache=True, **given)
    return _own_logits(model, answer), model.cache_in(answer)


@lru_cache(maxsize=1)
def _why_not_packed(model: LanguageModel) -> str:
    """Why sequences cannot be packed into one row; nothing where they can."""
    if model.first_position is None:
        return "its forward takes no position_ids"
    if not model.packs:
        return "its masks are made without position_ids, or flash attention does not serve it"
    with torch.no_grad():
        tried = attempt(lambda: model.logits(model.ids(8), **packing_marks((5, 3), model.first_position or 0)))
    return tried.sentence if isinstance(tried, Caught) else ""


def _packed(model: LanguageModel, module: nn.Module, ids: Tensor, starts: Tensor) -> Tensor:
    marks = packing_marks([length for length in starts.diff().tolist() if length], model.first_position or 0)
    on_device = {name: mark.to(ids.device) if isinstance(mark, Tensor) else mark for name, mark in marks.items()}
    return _own_logits(model, model.answer(_theirs(model, ids), module=module, **on_device))


def _generated(model: LanguageModel, module: Any, ids: Tensor, num_tokens: int) -> Tensor:
    first = model.tokens[0]
    theirs = _theirs(model, ids)
    made: Tensor = module.generate(
        theirs,
        attention_mask=torch.ones_like(theirs),
        max_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=model.pad,
        suppress_tokens=list(range(first)),
    )
    return made - first


def _twins(model: LanguageModel) -> Mapping[str, Callable[[int], nn.Module]]:
    """Implementations that the type agrees to be built in."""
    assert model.build is not None
    build = model.build
    named = model.implementations
    served = [name for name in named if not isinstance(attempt(lambda name=name: build(**named[name])), Caught)]
    return {name: lambda seed, name=name: build(**model.implementations[name]) for name in served}
