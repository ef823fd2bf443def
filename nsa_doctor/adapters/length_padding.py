"""Finds out how a plain module masks padding by the lengths of rows that its forward takes, in tokens or as shares."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nsa_doctor.adapters.answer_shapes import of_tokens
from nsa_doctor.adapters.input_discovery import called
from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.attention.padded_rows import ByLengths
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.subject.contract import Subject

OF_LENGTHS = re.compile(
    r"(x|input|src|seq|sequence|token|text|feature|audio|wav|frame|mel)s?_?(lens?|lengths?)|lens|lengths"
)
_LENGTH, _CLOSE = 12, 1e-3
_ROWS = (12, 8, 5)  # tokens of each, the longest first, as packed sequences want them
_MEANINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "how many tokens each row has": lambda keep: keep.long().sum(1),
    "what share of its tokens each row has": lambda keep: keep.float().mean(1),
}


def by_lengths(
    subject: Subject, way: str | None, names: Sequence[str]
) -> tuple[Callable[[nn.Module, Tensor, Tensor], Tensor], str] | None:
    """How padding behind a row's tokens is masked by one of these parameters, and in words.

    Whole rows give what rows without lengths do, and shorter ones something else.
    """
    for name in names:
        for words, meant in _MEANINGS.items():
            padded = partial(_padded, subject, way, name, meant)
            if attempt(partial(_counts, subject, padded)) is True:
                return ByLengths(padded), f"padding is masked by forward(x, {name}=...), {words}"
    return None


def _counts(subject: Subject, padded: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> bool:
    sp = built(subject)
    x = sp.input(min(_LENGTH, subject.max_length), len(_ROWS))
    place = torch.arange(x.shape[1], device=x.device)
    some = place < torch.tensor(_ROWS, device=x.device)[:, None]

    def given(keep: Tensor) -> Tensor:
        seed_everything(subject.seed)
        return padded(sp.module, x.clone(), keep).double()

    with torch.no_grad():
        plain, shorter = sp(x).double(), given(some)
        due = _CLOSE * float(plain.abs().max())
        is_as_none = bool((given(torch.ones_like(some)) - plain).abs().max() <= due)
        if not is_as_none or not bool((shorter - plain).abs().max() > due):
            return False
        x[:, -1] = sp.input(x.shape[1], len(_ROWS), subject.seed + 1)[:, -1]
        return bool((given(some) - shorter)[some & (place < x.shape[1] - 1)][_ROWS[0] - 1 :].abs().max() <= due)


def _padded(
    subject: Subject,
    way: str | None,
    name: str,
    meant: Callable[[Tensor], Tensor],
    module: nn.Module,
    x: Tensor,
    keep: Tensor,
) -> Tensor:
    """The output for x [B, S, ...]; what is cut to the longest row gets zeros behind it."""

    def forward(given: Tensor) -> Any:
        answer = called(module, given, way, {name: meant(keep)})
        answer = answer if subject.answer is None else of_tokens(answer, given, *subject.answer)
        return _whole(answer, int(keep.sum(1).max()), given.shape[1])

    return checked_answer(subject, forward(x), x)[0]


def _whole(answer: Any, longest: int, length: int) -> Any:
    def filled(each: Any) -> Any:
        is_cut = isinstance(each, Tensor) and each.ndim > 1 and longest < length and each.shape[1] == longest
        return pad(each, (0, 0) * (each.ndim - 2) + (0, length - longest)) if is_cut else each

    if isinstance(answer, tuple) and type(answer) is tuple:
        return tuple(filled(each) for each in answer)
    return filled(answer)
