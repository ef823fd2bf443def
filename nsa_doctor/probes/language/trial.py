"""One comparison of a language model with itself: two tensors that must agree, and plain Python that shows it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.precision import finest_precision, noise_floor
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.language_model import LanguageModel

Pair = tuple[Tensor, Tensor]
LENGTH, ROWS = 40, 2


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is compared, in words; `pair` computes both sides, and `lines` set `got` and `expected` after `model`.

    rounding: how far rounding alone moves either, where that is not the rounding of logits.
    """

    what: str
    pair: Callable[[], Pair]
    lines: tuple[str, ...]
    rounding: Callable[[], float] | None = None


Property = Callable[[LanguageModel], Iterator[Trial]]


def rounding_of_logits(model: LanguageModel, length: int = LENGTH) -> float:
    """How far the logits [B, S, V] move when every parameter moves by one rounding of what it computes in."""
    subject = Subject(
        name=model.name,
        build=lambda _seed: model.module,
        forward=lambda module, ids: model.logits(ids, module=module),
        input="tokens",
        width=model.tokens[1],
        dtype=model.dtype,
    )
    sp = BuiltModule(subject, model.module, model.dtype)
    return float(noise_floor(sp, model.ids(length, ROWS), finest_precision(sp, sp.input(length)).eps).max())


def largest_difference(pair: Pair) -> float:
    """The largest difference of two tensors; not a number where one holds such, infinite where their shapes differ."""
    got, expected = (each.detach().double() for each in pair)
    if got.shape != expected.shape:
        return float("inf")
    return float((got - expected).abs().max()) if got.numel() else 0.0


def drawn(length: int, rows: int, seed: int, model: LanguageModel, name: str = "ids") -> str:
    """Plain Python that draws what `model.ids` does."""
    first, end = model.tokens
    row = f"{first} + torch.randperm({end - first}, generator=chance)[:{length}]"
    return f"chance = torch.Generator().manual_seed({seed}); {name} = torch.stack([{row} for _ in range({rows})])"


def plain_call(model: LanguageModel, ids: str, **named: str) -> str:
    """Plain Python for logits, with those keywords that the forward takes."""
    return f"{plain_answer(model, ids, **named)}{'.logits' if has_logits(model) else '[0]'}"


def plain_answer(model: LanguageModel, ids: str, **named: str) -> str:
    """Plain Python for one call, with those keywords that the forward takes; no cache unless it is given."""
    given = {name: value for name, value in named.items() if model.takes(name)}
    if "use_cache" in model.accepts:
        given.setdefault("use_cache", "False")
    return f"model({', '.join([f'input_ids={ids}', *(f'{name}={value}' for name, value in given.items())])})"


def has_logits(model: LanguageModel) -> bool:
    """Whether what the model answers has its logits by that name."""
    with torch.no_grad():
        return hasattr(model.answer(model.ids(2)), "logits")
