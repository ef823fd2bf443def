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
from torch.nn.functional import pad

MASK = torch.tensor(
    [[1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 1, 1, 1]], dtype=torch.bool
)  # some of each row and column
LENGTHS = torch.tensor([3, 1, 4])
IDS = torch.tensor([[7, 8, 9, 10, 11], [12, 13, 14, 15, 16]])
_HIDDEN = -50  # what is less hides


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


def _over_masked(reduce: Callable[[Tensor], Tensor], *others: Tensor) -> Iterator[Asking]:
    """Of all that is visible, of each row and of each column, for a mask of either meaning; and the mean of these.

    And of `others`, which are right by contract: values that are zero where they are hidden, or positive.
    """
    for values in (_values(), *others):
        right = []
        for mask in (MASK, ~MASK):
            rows = torch.stack([reduce(row[visible]) for row, visible in zip(values, mask, strict=True)])
            columns = torch.stack([reduce(row[visible]) for row, visible in zip(values.T, mask.T, strict=True)])
            right += [reduce(values[mask]), rows, columns, rows.mean(), columns.mean()]
        for mask in (MASK, MASK.to(torch.float64)):
            yield Asking((values.clone(), mask.clone()), tuple(right))


def _means(_: Sequence[str]) -> Iterator[Asking]:
    return _over_masked(Tensor.mean, _values() * MASK)


def _sums(_: Sequence[str]) -> Iterator[Asking]:
    return _over_masked(Tensor.sum, _values() * MASK)


def _maxima(_: Sequence[str]) -> Iterator[Asking]:
    return _over_masked(Tensor.amax, -_values())


def _softmax(_: Sequence[str], log: bool = False) -> Iterator[Asking]:
    """Over one axis or all of it, of shares of one or of one and what is visible; zero where it is hidden."""
    values = _values()
    added = torch.zeros(MASK.shape, dtype=torch.float64).masked_fill(~MASK, -1e9)
    for mask in (MASK, MASK.to(torch.float64), added):
        right = []
        for visible in (MASK,) if mask is added else (MASK, ~MASK):
            powers = values.exp() * visible
            sums = [powers.sum(axis, keepdim=True) for axis in (-1, 0)]
            right += [powers / each for total in (*sums, powers.sum()) for each in (total, 1 + total)]
        yield Asking((values.clone(), mask.clone()), tuple(each.log() if log else each for each in right))


def _lengths(names: Sequence[str]) -> Iterator[Asking]:
    """With and without a largest length; visible or hidden, from the left or from the right, of tokens or of rows."""
    for size in (6, 4):
        if size == 6 and not (len(names) > 1 and re.search(r"max|size|total|^t$|^n$|len", names[1])):
            continue
        visible = torch.arange(size) < LENGTHS[:, None]
        forms = [each.to(torch.float64) for one in (visible, visible.flip(1)) for each in (one, ~one)]
        yield Asking((LENGTHS.clone(), *((6,) if size == 6 else ())), (*forms, *(each.T for each in forms)))


def _shifted(names: Sequence[str]) -> Iterator[Asking]:
    """All but the first, which may be anything."""
    more = len(
        [name for name in names[1:] if "id" in name or "token" in name or name in ("pad", "bos", "sos", "start")]
    )
    for count in dict.fromkeys((more, 0, 1)):
        yield Asking((IDS.clone(), *(1, 2)[:count]), (IDS[:, :-1].to(torch.float64), IDS.to(torch.float64)))


def _behind_the_first(answer: Tensor) -> Tensor:
    if answer.shape[:1] != IDS.shape[:1] or torch.equal(answer[1], IDS[0]):
        raise ValueError("it shifts rows")
    return answer[:, 1:].to(torch.float64)


def _logits() -> Tensor:
    return 2 * torch.randn(2, 4, 7, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def _of_labels(_: Sequence[str]) -> Iterator[Asking]:
    """Of each token, or of the one behind it, with a zero in place of what has none; summed, or not, or negative."""
    logits, labels = _logits(), torch.tensor([[3, 4, 6, 3], [4, 5, 5, 4]])
    logs = logits.log_softmax(-1)
    chosen = logs.gather(-1, labels[..., None])[..., 0]
    shifted = logs[:, :-1].gather(-1, labels[:, 1:, None])[..., 0]
    forms = [
        form for each in (chosen, shifted) for form in (each, each.sum(-1), each.mean(-1), each.sum(), each.mean())
    ]
    forms += [pad(shifted, (1, 0)), pad(shifted, (0, 1))]
    yield Asking((logits, labels), (*forms, *(-each for each in forms)))


def as_shares(answer: Tensor) -> Tensor:
    """A mask as ones and zeros, where zero and a large negative number show and hide; none that hides nothing."""
    if bool((answer == answer.flatten()[0]).all()):
        raise ValueError("it is no mask of lengths of tokens")
    if answer.dtype != torch.bool and answer.is_floating_point() and bool((answer <= _HIDDEN).any()):
        return (answer > _HIDDEN).to(torch.float64)
    return answer.to(torch.float64)


def _named(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"^_?(compute_|get_|calc(ulate)?_|batch(ed)?_|safe_)?({pattern})$")


_OF_MASK = (r"", r"mask")
_OF_LABELS = (r"logit", r"label|target|id|token|index|action")
HELPERS = (
    Helper(_named("masked_(mean|average|avg)"), _OF_MASK, "the mean of what is visible", _means),
    Helper(_named("masked_sum"), _OF_MASK, "the sum of what is visible", _sums),
    Helper(_named("masked_max"), _OF_MASK, "the largest of what is visible", _maxima),
    Helper(_named("masked_softmax"), _OF_MASK, "a softmax over what is visible", _softmax),
    Helper(_named("masked_log_softmax"), _OF_MASK, "a log-softmax over what is visible", partial(_softmax, log=True)),
    Helper(
        _named(
            r"(seq(uence)?_?)?len(gth)?s?_(to|2)_((pad(ding)?|attn|attention|key_padding|bool|valid)_)?mask"
            r"|mask_from_len(gth)?s?|sequence_mask|make_(non_)?pad_mask"
        ),
        (r"len|size",),
        "a mask that is true, or false, up to each length",
        _lengths,
        as_shares,
    ),
    Helper(_named("shift_(tokens_)?right"), (r"",), "the token before each", _shifted, _behind_the_first),
    Helper(
        _named("log_?prob(s|abilities)?_(from|of)_(logits|labels)|(gather|selective)_log_?(softmax|probs?)"),
        _OF_LABELS,
        "the logarithm of each label's probability",
        _of_labels,
    ),
)
