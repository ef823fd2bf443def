"""What small functions of masks, lengths and logits answer by their names: every convention that is in use.

Each asks a function on made-up values, and gives what may come of it; an answer of another form proves nothing.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

MASK = torch.tensor(
    [[1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 1, 1, 1]], dtype=torch.bool
)  # some of each row and column
LENGTHS = torch.tensor([3, 1, 4])
IDS = torch.tensor([[7, 8, 9, 10, 11], [12, 13, 14, 15, 16]])
_HIDDEN = -1e4  # what is less hides


@dataclass(frozen=True)
class Asking:
    """What a function is given, in order, and the answers that are right; none where it cannot be said."""

    given: tuple[Any, ...]
    right: tuple[Tensor, ...]


@dataclass(frozen=True)
class Helper:
    """A kind of function: what its name and its first arguments are called, what it is to be, and how it is asked."""

    name: re.Pattern[str]
    takes: tuple[str, ...]
    words: str
    ask: Callable[[Sequence[str]], Iterator[Asking]]
    read: Callable[[Tensor], Tensor] = lambda answer: answer


def _values(scale: float = 3.0) -> Tensor:
    """All negative, so that zeros in place of what is hidden show."""
    generator = torch.Generator().manual_seed(20261130)
    return -0.5 - scale * torch.rand(MASK.shape, generator=generator, dtype=torch.float64)


def _over_masked(reduce: Callable[[Tensor], Tensor]) -> Iterator[Asking]:
    """Of all that is visible, of each row and of each column, for a mask of either meaning; and the mean of rows."""
    values = _values()
    right = []
    for mask in (MASK, ~MASK):
        rows = torch.stack([reduce(row[visible]) for row, visible in zip(values, mask, strict=True)])
        columns = torch.stack([reduce(row[visible]) for row, visible in zip(values.T, mask.T, strict=True)])
        right += [reduce(values[mask]), rows, columns, rows.mean()]
    for mask in (MASK, MASK.to(torch.float64)):
        yield Asking((values.clone(), mask.clone()), tuple(right))


def _means(_: Sequence[str]) -> Iterator[Asking]:
    return _over_masked(Tensor.mean)


def _sums(_: Sequence[str]) -> Iterator[Asking]:
    return _over_masked(Tensor.sum)


def _maxima(_: Sequence[str]) -> Iterator[Asking]:
    return _over_masked(Tensor.amax)


def _softmax(_: Sequence[str], log: bool = False) -> Iterator[Asking]:
    values = _values()
    right = []
    for mask in (MASK, ~MASK):
        for axis in (-1, 0):
            hidden = values.masked_fill(~mask, -torch.inf)
            right += [hidden.softmax(axis), hidden.softmax(axis).nan_to_num(0)]
    added = torch.zeros(MASK.shape, dtype=torch.float64).masked_fill(~MASK, -1e9)
    for mask in (MASK, MASK.to(torch.float64), added):
        yield Asking((values.clone(), mask.clone()), tuple(each.log() if log else each for each in right))


def _lengths(names: Sequence[str]) -> Iterator[Asking]:
    """With and without a largest length; visible or hidden, as true, one, zero or a large negative number."""
    for size in (6, 4):
        if size == 6 and not (len(names) > 1 and re.search(r"max|size|total|^t$|^n$|len", names[1])):
            continue
        visible = torch.arange(size) < LENGTHS[:, None]
        right = [form for each in (visible, ~visible) for form in (each.to(torch.float64), each.T.to(torch.float64))]
        yield Asking((LENGTHS.clone(), *((6,) if size == 6 else ())), tuple(right))


def _shifted(names: Sequence[str]) -> Iterator[Asking]:
    more = len(
        [name for name in names[1:] if "id" in name or "token" in name or name in ("pad", "bos", "sos", "start")]
    )
    for count in dict.fromkeys((more, 0, 1)):
        starts = [IDS[:, :1] * 0 + start for start in (0, 1, 2)] + [IDS[:, -1:], IDS[:, :1] * 0 - 100]
        right = [torch.cat((start, IDS[:, :-1]), 1).to(torch.float64) for start in starts]
        right += [torch.cat((start, IDS), 1).to(torch.float64) for start in starts]
        yield Asking((IDS.clone(), *(1, 2)[:count]), tuple(right))


def _logits() -> Tensor:
    return 2 * torch.randn(2, 4, 7, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def _entropy(names: Sequence[str]) -> Iterator[Asking]:
    logits = _logits()
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    per_row = (entropy, entropy.mean(), entropy.mean(-1), entropy.sum(-1), entropy.sum())
    bits = torch.log(torch.tensor(2.0, dtype=torch.float64))
    given = logits.softmax(-1) if names and "prob" in names[0] and "log" not in names[0] else logits
    yield Asking((given,), (*per_row, *(each / bits for each in per_row)))


def _of_labels(_: Sequence[str]) -> Iterator[Asking]:
    logits, labels = _logits(), torch.tensor([[1, 0, 6, 3], [2, 5, 5, 4]])
    logs = logits.log_softmax(-1)
    chosen = logs.gather(-1, labels[..., None])[..., 0]
    shifted = logs[:, :-1].gather(-1, labels[:, 1:, None])[..., 0]
    forms = [form for each in (chosen, shifted) for form in (each, each.sum(-1), each.mean(-1))]
    yield Asking((logits, labels), (*forms, *(-each for each in forms)))


def _discounted(_: Sequence[str]) -> Iterator[Asking]:
    rewards = torch.tensor([1.0, 0.5, -2.0, 3.0, 0.25, 1.5], dtype=torch.float64)
    total, sums = torch.zeros((), dtype=torch.float64), []
    for reward in rewards.flip(0):
        total = reward + 0.9 * total
        sums.append(total)
    right = torch.stack(sums).flip(0)
    for each in (right, (right - right.mean()) / right.std(), (right - right.mean()) / right.std(correction=0)):
        yield Asking((rewards.clone(), 0.9), (each, right[0]))


def as_shares(answer: Tensor) -> Tensor:
    """A mask as ones and zeros, where zero and a large negative number show and hide."""
    if answer.dtype != torch.bool and answer.is_floating_point() and bool((answer <= _HIDDEN).any()):
        return (answer > _HIDDEN).to(torch.float64)
    return answer.to(torch.float64)


def _named(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"^_?(compute_|get_|calc(ulate)?_|batch(ed)?_|safe_)?({pattern})$")


_OF_MASK = (r"", r"mask")
_OF_LABELS = (r"logit|score|output", r"label|target|id|token|index|action")
HELPERS = (
    Helper(_named("masked_(mean|average|avg)"), _OF_MASK, "the mean of what is visible", _means),
    Helper(_named("masked_sum"), _OF_MASK, "the sum of what is visible", _sums),
    Helper(_named("masked_max"), _OF_MASK, "the largest of what is visible", _maxima),
    Helper(_named("masked_softmax"), _OF_MASK, "a softmax over what is visible", _softmax),
    Helper(_named("masked_log_softmax"), _OF_MASK, "a log-softmax over what is visible", partial(_softmax, log=True)),
    Helper(
        _named(
            r"(seq(uence)?_?)?len(gth)?s?_(to|2)_(\w+_)?mask|mask_from_len(gth)?s?|sequence_mask|make_(non_)?pad_mask"
        ),
        (r"len|size",),
        "a mask that is true, or false, up to each length",
        _lengths,
        as_shares,
    ),
    Helper(_named(r"shift_(\w+_)?right"), (r"",), "the tokens before", _shifted),
    Helper(_named("entropy_from_(logits|probs)"), (r"logit|prob",), "the entropy of the probabilities", _entropy),
    Helper(
        _named("log_?prob(s|abilities)?_(from|of)_(logits|labels)|(gather|selective)_log_?(softmax|probs?)"),
        _OF_LABELS,
        "the logarithm of each label's probability",
        _of_labels,
    ),
    Helper(
        _named(r"discount(ed)?_(cum(ulative)?_?sums?|returns?|rewards?(_to_go)?)"),
        (r"", r"gamma|discount|factor"),
        "each reward and the discounted ones behind it",
        _discounted,
    ),
)
