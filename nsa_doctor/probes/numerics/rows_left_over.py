"""A number of rows at which parts of a batch leave a norm in training with one row, and smaller batches do not."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.torch_errors import TorchError, error_kind
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.internal import NORMS_BY_BATCH
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.subject.contract import Subject

_LENGTHS = (19, 67)
_BATCHES = (2, 3, 4, 5, 7)
_LARGEST_PART, _MOST_ROWS, _MOST_PARTS = 64, 257, 3


@dataclass(frozen=True)
class RowLeftOver:
    """The batch that raises, what it raises, the last smaller one that goes well, and the line."""

    batch: int
    length: int
    raised: str
    well: int
    place: Place


def row_left_over(subject: Subject) -> RowLeftOver | None:
    """The first such batch; of one row, or where no smaller batch goes well, it is torch's own rule, and none.

    Batches are tried of a few rows, and of one more than the parts that holders of such norms may cut them into. Each
    has to raise at two lengths: what a draw leaves one token has another number of them in another batch.
    """
    if "train" not in subject.modes:
        return None
    sp = built(subject, mode="train")
    if not any(isinstance(part, NORMS_BY_BATCH) for part in sp.module.modules()):
        return None
    lengths = tuple(dict.fromkeys(min(length, subject.max_length) for length in _LENGTHS))
    more = () if subject.is_slow else tuple(_of_parts(sp.module))
    well = 0
    for batch in sorted({*_BATCHES, *more}):
        failure = _failure(sp, batch, lengths[0])
        if failure is None:
            well = batch
        elif well and _is_of_one_value(failure) and all(_raises_alike(sp, batch, each) for each in lengths[1:]):
            trouble = trouble_of(failure, subject.packages)
            return RowLeftOver(batch, lengths[0], trouble.message, well, trouble.place)
    return None


def _of_parts(root: nn.Module) -> Iterator[int]:
    """Rows of which one is left over, by whole numbers that modules around a norm hold."""
    holders = [each for each in root.modules() if any(isinstance(part, NORMS_BY_BATCH) for part in each.modules())]
    sizes = {
        value
        for each in holders
        if not isinstance(each, NORMS_BY_BATCH)
        for value in vars(each).values()
        if isinstance(value, int) and not isinstance(value, bool) and 2 < value <= _LARGEST_PART
    }
    for size in sorted(sizes)[:_MOST_PARTS]:
        yield size + 1  # as `split` cuts them
        if size * (size - 1) + 1 <= _MOST_ROWS:
            yield size * (size - 1) + 1  # as `chunk` does, which makes even parts first


def _failure(sp: BuiltModule, batch: int, length: int) -> SubjectFailedError | None:
    """What a forward pass in training raises; None where it goes well, or could not be made."""
    try:
        with unobserved(), torch.no_grad():
            sp(sp.input(length, batch))
    except SubjectFailedError as failure:
        return failure
    except NotComparableError:
        return None
    return None


def _raises_alike(sp: BuiltModule, batch: int, length: int) -> bool:
    failure = _failure(sp, batch, length)
    return failure is not None and _is_of_one_value(failure)


def _is_of_one_value(failure: SubjectFailedError) -> bool:
    return error_kind(failure.caught.sentence) is TorchError.ONE_VALUE_PER_CHANNEL
