"""The line that builds a mask which shows a query later keys, upstream of the operation at which two runs diverge."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.recording import Operation, Recording
from nsa_doctor.probes.tensors.operations import reads_masks

_MOST_BETWEEN = 24  # operations on scores between what hides some of them and what reads them, views among them
_PRODUCTS = ("bmm", "mm", "matmul")  # of probabilities and values
_MOST_ELEMENTS = 1 << 22


def mask_with_later_keys(operations: Sequence[Operation], other: Recording, index: int) -> Place | None:
    """The first operation of a mask, read by operation `index` of a run, that lets queries see later keys.

    A mask is what both runs have alike, whatever their inputs are; its last queries are its last keys.
    """
    if not reads_masks(operations[index].name) and operations[index].name not in _PRODUCTS:
        return None
    for number in sorted(_constants(operations, other, index)):
        place = operations[number].place
        if place.file and any(_shows_later(seen) for each in operations[number].results for seen in _visible(each)):
            return place
    return None


def _constants(operations: Sequence[Operation], other: Recording, index: int) -> set[int]:
    """The operations upstream that give the same in both runs, by way of a few that do not."""
    found, waiting = set[int](), [(index, 0)]
    seen = {index}
    while waiting:
        number, depth = waiting.pop()
        for maker in operations[number].makers:
            if maker < 0 or maker in seen:
                continue
            seen.add(maker)
            if _is_alike(operations[maker], other.operations[maker : maker + 1]):
                found.add(maker)
                waiting.append((maker, depth))
            elif depth < _MOST_BETWEEN and number not in found:
                waiting.append((maker, depth + 1))
    return found


def _is_alike(operation: Operation, others: Sequence[Operation]) -> bool:
    pairs = [pair for other in others for pair in zip(operation.results, other.results, strict=False)]
    return bool(pairs) and all(one.shape == two.shape and torch.equal(one, two) for one, two in pairs)


def _visible(mask: Tensor) -> list[Tensor]:
    """[Q, K]: which key each query sees by each of the last slices of a mask; none where it is no mask."""
    if mask.dtype != torch.bool or mask.ndim < 2 or min(mask.shape[-2:]) < 2 or mask.numel() > _MOST_ELEMENTS:
        return []
    slices = mask.reshape(-1, *mask.shape[-2:])
    hides = bool(slices[-1, 0, -1]) and not bool(slices[-1, -1, 0])
    return [~each if hides else each for each in (slices[0], slices[-1])]


def _shows_later(visible: Tensor) -> bool:
    """Whether queries see more the later they are, and some one that is later than they are."""
    num_before = visible.shape[1] - visible.shape[0]
    return num_before >= 0 and _grows(visible) and bool(visible.triu(num_before + 1).any())


def _grows(visible: Tensor) -> bool:
    """Whether the last key that a query sees comes later for later queries, and not all see the last."""
    numbers = torch.arange(1, visible.shape[1] + 1)
    last = torch.where(visible, numbers, 0).amax(1)
    return bool((last[1:] >= last[:-1]).all()) and int(last[0]) < int(last[-1])
