"""A row alone and in a batch: FWD204's question, asked of many batches, values and lengths."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from nsa_doctor.checks._shared.compared import many_tokens, odd_lengths
from nsa_doctor.checks._shared.each_length import LONGEST, each_length
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.inputs import rows_to_try
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.subject.contract import Subject

_BATCHES = (2, 5)
_MORE_BATCHES = {"smoke": (3, 4, 8), "quick": (3, 4, 6, 7, 8, 9, 17), "full": (3, 4, 6, 7, 8, 9, 12, 16, 17, 33)}
_SHORT, _PADDED = 19, 9
_FEW = 3  # of two, what exchanges them twice is not seen


@dataclass(frozen=True)
class Plan:
    """A batch of rows, of values of a kind; padded ones begin and end with zeros, each with another number of them."""

    length: int
    batch: int
    is_padded: bool = False
    values: str = ""

    def input(self, built: BuiltModule) -> Tensor:
        """The batch [B, S, ...]."""
        x = built.input(self.length, self.batch)
        for row in range(self.batch if self.is_padded else 0):
            x[row, : (row + 2) % 3] = 0
            x[row, self.length - (2 * row + 2) % 5 :] = 0
        return x


def plans(subject: Subject) -> Iterator[Plan]:
    """What to try, the cheapest first, and last the first length at which a look at each shows something."""
    length = odd_lengths(subject)[0]
    short = min(_SHORT, length)
    yield from (Plan(length, batch) for batch in _BATCHES)
    yield from (Plan(short, batch) for batch in _MORE_BATCHES[subject.profile])
    if subject.profile != "smoke":
        yield Plan(short, _PADDED, is_padded=True)
    yield from (Plan(short, _BATCHES[0], values=kind) for kind in rows_to_try(subject))
    yield from (Plan(*many) for many in many_tokens(subject))
    yield from _of_each_length(subject)


def row_that_changes(subject: Subject, plan: Plan) -> Departure | None:
    """The first row, of the first, the middle and the last, whose output alone is another, and how."""
    built = comparable_module(subject)
    try:
        base = baseline(built, plan.input(built))
    except NotComparableError:
        if plan.is_padded:  # what comes of rows of padding is for the NAN checks to tell
            return None
        raise
    for row in sorted({0, plan.batch // 2, plan.batch - 1}):
        with torch.no_grad():
            alone = built(own := base.x[row : row + 1])
        found = base.departure(alone, rows=slice(row, row + 1), given=own)
        if found is not None:
            return replace(found, first_row=row)
    return None


def _of_each_length(subject: Subject) -> Iterator[Plan]:
    """The first length at which the last of a few rows gets another output than alone, if there is one."""
    built = comparable_module(subject)
    x = built.input(min(LONGEST, subject.max_length), _FEW)

    def differs(length: int) -> bool:
        base = baseline(built, x[:, :length])
        with torch.no_grad():
            return base.departure(built(base.x[-1:]), rows=slice(-1, None)) is not None

    yield from (Plan(length, _FEW) for length in islice(filter(differs, each_length(subject, differs)), 1))
