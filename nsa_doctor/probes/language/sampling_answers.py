"""What a function that filters or draws answers on made-up logits: which tokens of each row are kept, or drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.language.sampling_functions import Sampling
from nsa_doctor.probes.language.sampling_names import IDLE, Given, Kind
from nsa_doctor.probes.language.sampling_scores import VALUES, as_given
from nsa_doctor.probes.model.state import seed_everything

_REMOVED = -50.0  # no logit is as low
_NO_SHARE = 1e-12
_SUM = 1e-3
_NUM_IDS = 6
_SEEDS = (3, 11)
SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "rows of one token": lambda x: x[:, None],
    "one row": lambda x: x,
}


@dataclass(frozen=True)
class Filtered:
    """[rows, tokens] that come back, and which are kept; `others` are further readings of it, if it can be read so."""

    scores: Tensor
    kept: Tensor
    others: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A function on logits of one shape, given as logits or otherwise; `answers` are by the number's value."""

    kind: Kind
    given: Given
    shape: str
    answers: dict[float, Any]


def earlier_ids(num_rows: int, num_tokens: int) -> Tensor:
    """[rows, ids], of each row others."""
    rows = torch.arange(num_rows)[:, None]
    return (rows * 7 + torch.arange(_NUM_IDS)[None] * 5) % num_tokens


def asked(one: Sampling, kind: Kind, given: Given, shape: str, logits: Tensor) -> Asked | None:
    """What it answers to every value of the number; None where one has another form, or is another each time."""
    answers: dict[float, Any] = {}
    for value in VALUES[kind]:
        number = int(value) if kind == "top_k" else value
        tries = [attempt(lambda n=number, s=seed: _answer(one, kind, n, given, shape, logits, s)) for seed in _SEEDS]
        first, second = tries
        if type(first) is not type(second) or not isinstance(first, (Tensor, Filtered)):
            return None
        if isinstance(first, Filtered) and isinstance(second, Filtered) and not torch.equal(first.kept, second.kept):
            return None
        answers[value] = first
    kinds = {type(each) for each in answers.values()}
    return Asked(kind, given, shape, answers) if len(kinds) == 1 else None


def whole(one: Sampling, kind: Kind, given: Given, shape: str, logits: Tensor) -> Filtered | Tensor | None:
    """What it answers where no number does anything; rows that it leaves as they are count as its answer."""
    x, ids = as_given(logits, given), earlier_ids(*logits.shape)
    number = int(IDLE[kind]) if kind == "top_k" else IDLE[kind]
    if shape != "one row":
        scores = SHAPES[shape](x).clone()
        answer = one.ask(scores, ids, {kind: number})
        return read(scores if answer is None else answer, scores, SHAPES[shape](x))
    scores = x[0].clone()
    answer = one.ask(scores, ids[0], {kind: number})
    return read(scores if answer is None else answer, scores, x[0])


def raises_without_tokens(one: Sampling, kind: Kind, given: Given, shape: str, logits: Tensor) -> str:
    """What it raises of rows whose most likely token alone is above p, and of no other; nothing if it does not."""
    top = logits.softmax(-1).amax(-1)
    if asked(one, kind, given, shape, logits[top < min(VALUES[kind])]) is None:
        return ""
    raised = attempt(lambda: _answer(one, kind, max(VALUES[kind]), given, shape, logits[top > max(VALUES[kind])], 0))
    return raised.sentence if isinstance(raised, Caught) and "probability tensor" in raised.sentence else ""


def _answer(
    one: Sampling, kind: Kind, number: float, given: Given, shape: str, logits: Tensor, seed: int
) -> Filtered | Tensor | None:
    """Filtered rows, or [rows] ids that are drawn."""
    x, ids = as_given(logits, given), earlier_ids(*logits.shape)
    seed_everything(seed)
    if shape != "one row":
        scores = SHAPES[shape](x).clone()
        return read(one.ask(scores, ids.clone(), {kind: number}), scores, SHAPES[shape](x))
    rows = []
    for row, own in zip(x, ids, strict=True):
        scores = row.clone()
        rows.append(read(one.ask(scores, own.clone(), {kind: number}), scores, row))
    drawn = [each for each in rows if isinstance(each, Tensor)]
    if len(drawn) == len(rows):
        return torch.cat(drawn)
    filtered = [each for each in rows if isinstance(each, Filtered)]
    if len(filtered) < len(rows) or len({len(each.others) for each in filtered}) > 1:
        return None
    others = tuple(torch.cat(each) for each in zip(*(each.others for each in filtered), strict=True))
    return Filtered(torch.cat([each.scores for each in filtered]), torch.cat([each.kept for each in filtered]), others)


def read(answer: Any, scores: Tensor, before: Tensor) -> Filtered | Tensor | None:
    """An answer, or what was written into the scores where there is none; None of another form."""
    if answer is None:
        answer = scores if not torch.equal(scores, before) else None
    if type(answer) is int and before.ndim == 1:
        answer = torch.tensor([answer])
    if isinstance(answer, (tuple, list)):
        answer = _of_several(list(answer), before)
    if not isinstance(answer, Tensor):
        return None
    num_tokens = before.shape[-1]
    num_rows = before.numel() // num_tokens
    if answer.numel() == before.numel() and answer.shape[-1] == num_tokens and answer.ndim in (before.ndim, 2):
        flat, x = answer.detach().reshape(num_rows, num_tokens), before.reshape(num_rows, num_tokens)
        return _filtered(flat, x)
    is_by_row = answer.shape[:1] == before.shape[:1] or before.ndim == 1
    if answer.dtype == torch.int64 and answer.numel() == num_rows and is_by_row:
        ids = answer.detach().reshape(num_rows)
        return ids if bool(((ids >= 0) & (ids < num_tokens)).all()) else None
    return None


def _of_several(answer: list[Any], before: Tensor) -> Any:
    """The one of the scores' shape; sorted ones at their places where these are beside them; ids that are drawn."""
    alike = [each for each in answer if isinstance(each, Tensor) and each.shape == before.shape]
    if len(alike) == 2 and alike[0].is_floating_point() and alike[1].dtype == torch.int64:
        values, places = alike
        is_whole = torch.equal(places.sort(-1).values, torch.arange(before.shape[-1]).expand_as(places))
        return torch.empty_like(values).scatter(-1, places, values) if is_whole else None
    if len(alike) == 1:
        return alike[0]
    ids = [each for each in answer if isinstance(each, Tensor) and each.dtype == torch.int64]
    return ids[0] if len(ids) == 1 and not alike else None


def _filtered(answer: Tensor, x: Tensor) -> Filtered | None:
    if answer.dtype == torch.bool:
        return Filtered(answer.float(), answer, (~answer,))
    if not answer.is_floating_point():
        return None
    sums = answer.sum(-1)
    is_of_probs = bool((x >= 0).all()) and bool((answer >= 0).all())
    is_share = bool((answer >= 0).all()) and bool(((sums - 1).abs() < _SUM).all())
    if is_of_probs or is_share:
        return Filtered(answer, answer > _NO_SHARE)
    kept = answer > _REMOVED  # of NaN none is
    is_zeroed = bool(((answer == 0) & (x != 0)).any())
    return Filtered(answer, kept, (answer != 0,) if is_zeroed else ())
