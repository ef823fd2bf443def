"""Masks that a pass makes by comparing values with zero, and that hide no token of zeros: what is compared never is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.recording import Operation, Recording, record
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.numerics.paired_operations import OF_LAYOUT
from nsa_doctor.subject.contract import Subject

_LENGTH, _OWN = 19, 12  # tokens, and those before the padding
_COMPARING = frozenset({"ne", "eq", "to_copy", "logical_not"})
_FILLING = frozenset({"masked_fill", "masked_fill_", "where"})
_REDUCING = frozenset(
    {"abs", "sum", "mean", "amax", "amin", "max", "min", "norm", "linalg_vector_norm", "sqrt", "pow", "square", "sign"}
)
_PICKING = OF_LAYOUT | {"select", "slice", "squeeze", "unsqueeze", "to_copy", "constant_pad_nd"}
_HIDING = -1e4
_ROWS = 2


@dataclass(frozen=True)
class MaskOfNothing:
    """Where values of tokens are compared with zero, and where the mask that comes of it is read."""

    place: Place
    reader: Place


def masks_of_nothing(subject: Subject) -> Iterator[MaskOfNothing]:
    """Of a batch whose second row ends with tokens of zeros, or of an id that stands for padding."""
    length = min(_LENGTH, subject.max_length)
    if length <= _OWN:
        return
    sp, other = built(subject), built(subject)
    passes = [_pass(sp, x) for x in _padded_rows(sp, length)]
    first = passes[0]
    for number, each in enumerate(first.operations):
        if not _compares(each, length) or not all(_hides_nothing(run, number, length) for run in passes):
            continue
        reader = _reader(first.operations, number)
        if reader is None or not each.place.file or _is_a_gate(first.operations, number, length):
            continue
        other.module.load_state_dict(subject.build(subject.seed + 1).state_dict())
        moved = _pass(other, next(_padded_rows(sp, length))).operations
        is_same = len(moved) != len(first.operations) or torch.equal(moved[number].read[0][1], each.read[0][1])
        if not is_same:
            yield MaskOfNothing(each.place, reader.place)


def _pass(sp: BuiltModule, x: Tensor) -> Recording:
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    return record(lambda: sp(x), places)


def _padded_rows(sp: BuiltModule, length: int) -> Iterator[Tensor]:
    """The same rows with each of what may stand for padding behind the second."""
    x = sp.input(length, batch=_ROWS)
    if x.is_floating_point():
        x[1, _OWN:] = 0
        yield x
        return
    tables = [part for part in sp.module.modules() if isinstance(part, nn.Embedding)]
    known = {part.padding_idx for part in tables if part.padding_idx is not None}
    last = min((part.num_embeddings for part in tables), default=1) - 1
    for padding in dict.fromkeys((0, *sorted(known), last)):
        rows = x.clone()
        rows[1, _OWN:] = padding
        yield rows


def _compares(operation: Operation, length: int) -> bool:
    """Whether it asks of one value of each token whether it is zero."""
    if operation.name not in _COMPARING or not operation.results or not operation.read:
        return False
    result, value = operation.results[0], operation.read[0][1]
    if result.dtype is not torch.bool or not value.is_floating_point() or result.shape != value.shape:
        return False
    if result.shape[:2] != (_ROWS, length) or result.numel() != _ROWS * length:
        return False
    rest = [each for _, each in operation.read[1:]]
    zero, *others = (operation.again([torch.full_like(value, size), *rest])[0] for size in (0.0, 1.0, -2.0))
    return all(bool((each != zero).all()) for each in others)


def _hides_nothing(run: Recording, number: int, length: int) -> bool:
    """Whether no token compares as zero, those of padding neither."""
    operation = run.operations[number] if number < len(run.operations) else None
    return operation is not None and _compares(operation, length) and bool((operation.read[0][1] != 0).all())


def _is_a_gate(operations: Sequence[Operation], number: int, length: int) -> bool:
    """Whether what is compared is a number that is made of each token, and shut by zero, or is of pairs of tokens.

    What only sums up a token's values, or picks one, is none.
    """
    made_by = operations[number].read[0][0]
    while made_by >= 0:
        each = operations[made_by]
        inputs = [(maker, value) for maker, value in each.read if value.ndim]
        if not inputs or not each.results or each.results[0].numel() != _ROWS * length:
            return False
        if each.name not in _REDUCING | _PICKING:
            return True
        made_by, value = inputs[0]
        if value.ndim > 2 and value.shape[-2:] == (length, length):
            return True
    return False


def _reader(operations: Sequence[Operation], number: int) -> Operation | None:
    """The first operation that hides scores by the mask, or by another that is made of it, and of masks alone."""
    known = {number}
    for index in range(number + 1, len(operations)):
        each = operations[index]
        if known.isdisjoint(each.makers):
            continue
        if "attention" in each.name or "transformer_encoder" in each.name or _fills_scores(each, known):
            return each
        if each.results and all(result.dtype is torch.bool for result in each.results):
            known.add(index)
    return None


def _fills_scores(operation: Operation, known: set[int]) -> bool:
    """Whether it puts what softmax takes for nothing where such a mask says so."""
    if operation.name not in _FILLING:
        return False
    least: list[bool] = []
    for says in (True, False):
        read = [
            torch.full_like(each, says) if made_by in known and each.dtype is torch.bool else each
            for made_by, each in operation.read
        ]
        least.append(bool((operation.again(read)[0].double() <= _HIDING).all()))
    return least[0] != least[1]
