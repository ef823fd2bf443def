"""Random masks that are another for each token and one for all rows of a batch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import torch

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.mask_words import is_for_all_rows
from nsa_doctor.probes.hooks.random_masks import Draw, Masking, Masks, random_masks
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.subject.contract import Subject

_ROWS, _OTHER_ROWS = (7, 11, 13, 17), (5, 19, 23)  # of which the first that no weight has
_LENGTHS, _OTHER_LENGTHS = (59, 61, 67), (47, 43, 53)
_NUM_SEEDS = 3


@dataclass(frozen=True)
class DroppedAlike:
    """A mask, by where it is applied and where and in which shape it is drawn; for so many rows and tokens."""

    applied: Place
    draw: Draw
    rows: int
    share: float


def rows_dropped_alike(sp: BuiltModule) -> Iterator[DroppedAlike]:
    """Those of calls in training mode, each line once; raises NotApplicableError where no random mask is applied."""
    sizes = {size for each in (*sp.module.parameters(), *sp.module.buffers()) for size in each.shape}
    rows, other_rows = unlike(_ROWS, sizes), unlike(_OTHER_ROWS, sizes)
    length, other_length = (unlike(each, sizes, sp.subject.max_length) for each in (_LENGTHS, _OTHER_LENGTHS))
    first = masks_of(sp, rows, length, 0)
    if not first.num_applied:
        raise NotApplicableError("no random mask is applied in training mode")
    if not any(map(_may_be_alike, first.found)):
        return
    runs = [first, *(masks_of(sp, rows, length, seed) for seed in range(1, _NUM_SEEDS))]
    dropping = {each.at: each for masks in reversed(runs) for each in masks.found if _is_alike(each)}
    other = masks_of(sp, other_rows, other_length, 0) if dropping else Masks()
    others = {each.at: each for each in other.found}
    reported: set[tuple[str, int]] = set()
    for at, masking in dropping.items():
        draw = _draw_by_token(masking, others[at]) if at in others else None
        if draw is None and _is_by_step(at, runs, other, (length, other_length)):
            draw = masking.draws[0]
        if draw is None or at[1:] in reported:
            continue
        if not is_for_all_rows(sp.module, [masking.place, draw.place]):
            reported.add(at[1:])
            yield DroppedAlike(masking.place, draw, rows, float(masking.dropped.double().mean()))


def unlike(sizes: tuple[int, ...], others: set[int], most: int = 1 << 30) -> int:
    """The first of the sizes that is none of the others; the last if all are, and none above the most."""
    return min(next((each for each in sizes if each not in others), sizes[-1]), most)


def masks_of(sp: BuiltModule, rows: int, length: int, seed: int) -> Masks:
    """The random masks of one call."""
    run, x = replace(sp, subject=seeded(sp.subject, seed)), sp.input(length, rows)  # what is drawn for it is no mask
    with random_masks(sp.module, sp.subject.packages, rows) as masks:
        run(x)
    return masks


def seeded(subject: Subject, seed: int) -> Subject:
    """The subject, to be called with another seed."""
    return replace(subject, seed=subject.seed + seed)


def _may_be_alike(masking: Masking) -> bool:
    rows = masking.dropped.shape[masking.batch_axis]
    return masking.is_zero and not masking.are_rows_alike and all(rows not in each.shape for each in masking.draws)


def _is_alike(masking: Masking) -> bool:
    """Whether some of a row is dropped, and of each row the same."""
    if not _may_be_alike(masking) or not bool(masking.dropped.any()) or bool(masking.dropped.all()):
        return False
    return bool((masking.dropped == masking.dropped.narrow(masking.batch_axis, 0, 1)).all())


def _draw_by_token(one: Masking, other: Masking) -> Draw | None:
    """What is drawn for each token by itself, the one axis that is longer or shorter in the other call."""
    if one.dropped.ndim != other.dropped.ndim or one.batch_axis != other.batch_axis:
        return None
    both = list(zip(one.dropped.shape, other.dropped.shape, strict=True))
    axes = [axis for axis, (here, there) in enumerate(both) if here != there and axis != one.batch_axis]
    if len(axes) != 1 or len(one.draws) != len(other.draws):
        return None
    here, there = both[axes[0]]
    if not bool((one.dropped != one.dropped.narrow(axes[0], 0, 1)).any()):
        return None
    draws = zip(one.draws, other.draws, strict=True)
    return next((each for each, again in draws if _has(each, here) and _has(again, there)), None)


def _is_by_step(at: tuple[str, str, int], runs: list[Masks], other: Masks, lengths: tuple[int, int]) -> bool:
    """Whether the line is run for each token by itself, and masks features then, others each time."""
    steps = [[each for each in masks.found if each.at == at] for masks in runs]
    counts = {len(each) for each in steps}
    num_again = sum(each.at == at for each in other.found)
    if len(counts) != 1 or max(counts) * lengths[1] != num_again * lengths[0] or not num_again:
        return False
    masks = [each for run in steps for each in run]
    if not all(each.dropped.shape == masks[0].dropped.shape and prod(each.draws[0].shape) > 1 for each in masks):
        return False
    is_by_rows = all(
        bool((each.dropped.any(each.batch_axis) == each.dropped.all(each.batch_axis)).all()) for each in masks
    )
    is_another = [not torch.equal(one.dropped, two.dropped) for one, two in pairwise(steps[0])]
    return is_by_rows and sum(is_another) > len(is_another) / 2


def _has(draw: Draw, size: int) -> bool:
    """Whether so many places are among what is drawn."""
    return size > 1 and prod(draw.shape) % size == 0
