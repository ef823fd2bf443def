"""Inputs to examine a subject with: ordinary ones, and the valid ones that break careless code."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Point
from nsa_doctor.subject.contract import Subject

HUGE = 1e4  # one token's magnitude
LARGE = 1e2  # attention logits grow with its square, so they come near 1e4
_OUTLIER = 60.0  # of one channel, as trained models have them at the first token


def make_input(subject: Subject, point: Point, seed: int, device: torch.device) -> Tensor:
    """One row of input at this point: [1, S, width] embeddings in its dtype, or [1, S] token ids.

    Of repeated tokens there are more: four in turn, and in each further row one alone, each time another. So are there
    of one huge token: in the middle, first and last.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.device("cpu"):  # whatever default a subject has set
        if subject.input == "tokens":
            ids = _token_ids(point, subject.width, generator)
            return _begun_by_a_word(ids, subject.filler_ids, subject.width).to(device)
        return _embeddings(point, subject.width, generator).to(device, getattr(torch, point.dtype))


def ascending(x: Tensor, vocabulary: int) -> Tensor:
    """Token ids [B, S] that ascend by one from a row's own first, or so far before it that none is beyond the last.

    Of more tokens than there are ids they begin again after the last.
    """
    first = x[:, :1] % max(1, vocabulary - x.shape[1] + 1)
    return (first + torch.arange(x.shape[1], device=x.device)) % vocabulary


def begun_again(x: Tensor) -> Tensor:
    """The input [B, S, ...] with its first token in the place of the last: one id often begins and ends a text."""
    return torch.cat((x[:, :-1], x[:, :1]), dim=1)


def values_to_try(subject: Subject) -> list[str]:
    """Kinds of values that ordinary input is not of, each made of the value that stood there, for `with_values`."""
    return [] if subject.profile == "smoke" or subject.is_slow else list(_KINDS[subject.input])


def rows_to_try(subject: Subject) -> list[str]:
    """The same, and kinds that make a row of its first token, whatever the others are: rows are not mixed."""
    more = _ROWS[subject.input] if values_to_try(subject) else {}
    return [*values_to_try(subject), *more]


def arrangements_to_try(subject: Subject) -> list[str]:
    """Kinds that take a token's value from others, which mixes them."""
    return [*_ROWS[subject.input], *_MIXED] if values_to_try(subject) else []


def with_values(subject: Subject, kind: str, row: int | None = None) -> Subject:
    """The subject behind a change of its input alone, of one row if given: what holds of it holds of such values."""
    if not kind:
        return subject
    change, forward = (_KINDS[subject.input] | _ROWS[subject.input] | _MIXED)[kind], subject.forward

    def changed(x: Tensor) -> Tensor:
        if row is None:
            return change(x, subject.width)
        return torch.cat((x[:row], change(x[row : row + 1], subject.width), x[row + 1 :]))

    return replace(subject, forward=lambda module, x: forward(module, changed(x)))


def _first_of_each_row(x: Tensor) -> Tensor:
    """1 at the first channel of the first token of each row of x [B, S, width], 0 elsewhere."""
    where = torch.zeros(x.shape[1:], dtype=x.dtype, device=x.device)
    where[0, 0] = 1
    return where


Change = Callable[[Tensor, int], Tensor]
_KINDS: dict[str, dict[str, Change]] = {
    "embeddings": {
        "negative": lambda x, width: -x.abs(),
        "positive": lambda x, width: x.abs(),
        "small": lambda x, width: x * 1e-5,
        "large": lambda x, width: x * 30,
        "large in one channel of the first token": lambda x, width: x + _OUTLIER * _first_of_each_row(x),
    },
    "tokens": {
        "of few ids": lambda x, vocabulary: x % min(3, vocabulary),
        "of the last ids": lambda x, vocabulary: vocabulary - 1 - x % min(3, vocabulary),
    },
}
_OF_ONE_TOKEN: dict[str, Change] = {
    "the same in every token": lambda x, width: x[:, :1].expand_as(x).clone(),
    "ended by its first token": lambda x, width: begun_again(x),
}
_ROWS: dict[str, dict[str, Change]] = {
    "embeddings": _OF_ONE_TOKEN,
    "tokens": _OF_ONE_TOKEN
    | {"in ascending order": ascending, "in descending order": lambda x, n: ascending(x, n).flip(1)},
}
_MIXED: dict[str, Change] = {"the same in every row": lambda x, width: x[:1].expand_as(x).clone()}


def make_cotangent(output: Tensor, seed: int) -> Tensor:
    """A random direction to differentiate the output in: sums would cancel what softmax and norms get wrong."""
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(output.shape, generator=generator, device="cpu").to(output)


def _embeddings(point: Point, width: int, generator: torch.Generator) -> Tensor:
    shape = (1, point.length, width)
    normal = torch.randn(shape, generator=generator)
    match point.values:
        case "normal":
            return normal
        case "zeros":
            return torch.zeros(shape)
        case "constant":
            return torch.ones(shape)
        case "huge_token":
            return torch.where(_odd_one_out(point.length)[..., None], normal * HUGE, normal)
        case "large":
            return normal * LARGE
        # One direction for all tokens makes the logits of a head all of one sign; which sign depends on the head.
        case "aligned":
            return normal[:, :1].expand(shape) * LARGE
        case "opposed":
            sign = torch.where(torch.arange(point.length) % 2 == 0, 1.0, -1.0)[None, :, None]
            return normal[:, :1] * sign * LARGE
        case "repeated":
            alone = torch.randn(_rows_alone(point.length), 1, width, generator=generator)
            in_turn = normal[:, torch.arange(point.length) % _PERIOD]
            return torch.cat((in_turn, alone.expand(-1, point.length, -1)))


def _token_ids(point: Point, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Ids in place of magnitudes: the first id for zeros, the last for constant, one odd one out for a huge token."""
    shape = (1, point.length)
    random = torch.randint(vocabulary, shape, generator=generator)
    match point.values:
        case "zeros":
            return torch.zeros(shape, dtype=torch.int64)
        case "constant" | "aligned":
            return torch.full(shape, vocabulary - 1)
        case "huge_token":
            return torch.where(_odd_one_out(point.length), vocabulary - 1, torch.zeros_like(random))
        case "opposed":
            return (torch.arange(point.length) % 2 * (vocabulary - 1))[None]
        case "repeated":
            alone = torch.randint(vocabulary, (_rows_alone(point.length), 1), generator=generator)
            return torch.cat((random[:, torch.arange(point.length) % _PERIOD], alone.expand(-1, point.length)))
        case _:
            return random


def _begun_by_a_word(ids: Tensor, fillers: Sequence[int], vocabulary: int) -> Tensor:
    """The ids with another where a row begins with one that stands for no word, or consists of such alone."""
    word = next((each for each in range(vocabulary) if each not in fillers), None)
    if word is None or not fillers:
        return ids
    is_filler = torch.isin(ids, torch.tensor(fillers))
    is_filler[:, 1:] &= is_filler.all(1, keepdim=True)
    return torch.where(is_filler, word, ids)


def _odd_one_out(length: int) -> Tensor:
    """Bool [rows, S]: one token of each row, in the middle, first, or last: a recurrence begins in its own way."""
    places = list(dict.fromkeys((length // 2, 0, length - 1)))
    return torch.arange(length) == torch.tensor(places)[:, None]


def _rows_alone(length: int) -> int:
    """How many rows of one token each: a decay or a key that grows may be that of a few tokens only."""
    return _MANY_ROWS if length <= _SHORT else 1


_PERIOD = 4
_MANY_ROWS, _SHORT = 32, 128
