"""A row of a batch of which a mask hides every token: whether its softmax over nothing is NaN, and for whom."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.padded_rows import masks_by_place
from nsa_doctor.probes.attention.score_watch import SOFTMAX
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.recording import Operation, record
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.paired_operations import OF_LAYOUT
from nsa_doctor.subject.contract import Subject

_CLEANING = frozenset({"masked_fill", "masked_fill_", "nan_to_num", "nan_to_num_", "where"})
_FEWEST_AXES = 2  # of rows, queries and keys there are more
_LENGTH, _FULL, _EMPTY = 19, 0, 1


@dataclass(frozen=True)
class EmptyRow:
    """Where a softmax whose every score is -inf gets them, and how many gradients are NaN for a loss of another row.

    `is_of_tokens` where each query is a token too, and so a hidden one; else what asks is no padding. `is_expected`
    where rows like it are to be reckoned with: where several others read them by a mask, or what the softmax gives
    `is_cleaned` at once, of which backward knows nothing. Rows with no length, and a row's own summary of nothing, may
    be what nobody gives.
    """

    place: Place
    num_gradients: int
    is_of_tokens: bool
    is_expected: bool
    is_cleaned: bool


def empty_row(subject: Subject) -> EmptyRow | None:
    """Of a batch of a whole row and one with nothing but padding; None where nothing comes of it, or it is refused."""
    sp, length = built(subject), min(_LENGTH, subject.max_length)
    x, keep = sp.input(length, batch=2), torch.ones(2, length, dtype=torch.bool)
    keep[_EMPTY] = False
    output = _under(sp, x, keep)
    num_gradients = _spoilt_gradients(sp, output[_FULL])
    if not num_gradients or not bool(output[_FULL].isfinite().all()):
        return None
    places = Places(FrameFilter(subject.packages))
    places.know(sp.module)
    operations = record(lambda: _under(sp, x, keep), places).operations
    number = next((number for number, each in enumerate(operations) if _is_over_nothing(each)), None)
    place = Place() if number is None else _filled(operations, number)
    if number is None or not place.file:
        return None
    sizes = list(operations[number].results[0].shape)
    is_of_tokens, is_cleaned = sizes.count(length) != 1, _is_cleaned(operations, number)
    has_queries = not is_of_tokens and len(sizes) > _FEWEST_AXES and sizes[-1] == length and sizes[-2] > 1
    is_expected = is_cleaned or (has_queries and masks_by_place(subject))
    return EmptyRow(place, num_gradients, is_of_tokens, is_expected, is_cleaned)


def _under(sp: BuiltModule, x: Tensor, keep: Tensor) -> Tensor:
    padded = sp.subject.padded
    assert padded is not None
    seed_everything(sp.subject.seed)
    return padded(sp.module, x.clone(), keep.to(x.device))


def _spoilt_gradients(sp: BuiltModule, own: Tensor) -> int:
    """How many parameters have a gradient that is not finite, of a loss that reads nothing of the empty row."""
    parameters = [each for each in sp.module.parameters() if each.requires_grad]
    if not parameters or not own.requires_grad:
        return 0
    loss = (own * own.detach().cos()).sum()
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return sum(each is not None and not bool(each.isfinite().all()) for each in gradients)


def _is_over_nothing(operation: Operation) -> bool:
    """Whether it is a softmax, of scores without a NaN, that makes one."""
    if operation.name not in SOFTMAX or not operation.results or not operation.read:
        return False
    return not bool(operation.read[0][1].isnan().any()) and bool(operation.results[0].isnan().any())


def _is_cleaned(operations: Sequence[Operation], number: int) -> bool:
    """Whether what first computes with its weights makes them finite; laid out otherwise, they are the same."""
    known = {number}
    for index in range(number + 1, len(operations)):
        if known.isdisjoint(operations[index].makers):
            continue
        results = operations[index].results
        if operations[index].name not in OF_LAYOUT:
            return operations[index].name in _CLEANING and all(bool(each.isfinite().all()) for each in results)
        known.add(index)
    return False


def _filled(operations: Sequence[Operation], number: int) -> Place:
    """The line that makes the first -inf that its scores go back to, of what holds none."""
    place = operations[number].place
    while True:
        operation = operations[number]
        lost = [maker for maker, each in operation.read if maker >= 0 and each.ndim and _has_lost_rows(each)]
        if not lost:
            return operation.place if operation.place.file else place
        number, place = max(lost), operation.place


def _has_lost_rows(values: Tensor) -> bool:
    return values.is_floating_point() and bool(values.isneginf().any())
