"""Random masks that take whole rows of a batch away, of which nothing is left in the output."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.probes.behaviour.rows_dropped_alike import seeded, unlike
from nsa_doctor.probes.hooks.mask_words import is_of_a_branch, is_of_tokens, is_of_whole_rows
from nsa_doctor.probes.hooks.random_masks import Masking, random_masks
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.state import seed_everything

_ROWS, _LENGTHS = (61, 67, 71, 73), (23, 29, 31, 37)  # of which the first that no weight has
_NUM_SEEDS = 5
_FEWEST_LOST, _ENOUGH_LOST = 3, 8


@dataclass(frozen=True)
class LostRows:
    """A mask with which so many of `rows` rows over all calls lost all of them; `is_branch` by what it is called."""

    masking: Masking
    num_lost: int
    rows: int
    is_branch: bool


def lost_rows(sp: BuiltModule) -> Iterator[LostRows]:
    """Those of calls in training mode, each line once; raises NotApplicableError where no random mask is applied.

    A row is lost if other values of all its tokens give the same output under the same seed, and another one in
    evaluation.
    """
    sizes = {size for each in (*sp.module.parameters(), *sp.module.buffers()) for size in each.shape}
    rows, length = unlike(_ROWS, sizes), unlike(_LENGTHS, sizes, sp.subject.max_length)
    x = sp.input(length, rows)
    found: dict[tuple[str, str, int], tuple[Masking, int]] = {}
    innocent: set[tuple[str, str, int]] = set()
    for seed in range(_NUM_SEEDS):
        output, masks, num_applied = _masked(sp, x, seed)
        if not num_applied:
            raise NotApplicableError("no random mask is applied in training mode")
        masks = [each for each in masks if each.at not in innocent]
        if not masks:
            break
        dropping = _by_line([each for each in masks if bool(each.is_row_lost.any())])
        if not dropping:
            continue
        at_all = torch.stack([rows_lost for _, rows_lost in dropping.values()]).any(0)
        other, _, _ = _masked(sp, _with_others(sp, x, at_all), seed)
        is_same = (output == other).flatten(1).all(1)
        for at, (masking, rows_lost) in dropping.items():
            if bool(is_same[rows_lost].all()):
                found[at] = masking, int(rows_lost.sum()) + (found[at][1] if at in found else 0)
            else:
                innocent.add(at)
        if seed and found and all(number >= _ENOUGH_LOST for _, number in found.values()):
            break
    lost = {at: each for at, each in found.items() if at not in innocent and each[1] >= _FEWEST_LOST}
    if lost and _are_read_in_evaluation(sp, x):
        for masking, number in lost.values():
            places = [masking.place, *(each.place for each in masking.draws)]
            is_replaced = not masking.is_zero and not is_of_tokens(sp.module, places)
            if not is_replaced and not is_of_whole_rows(sp.module, places):
                yield LostRows(masking, number, rows * (seed + 1), is_of_a_branch(sp.module, places))


def _by_line(masks: list[Masking]) -> dict[tuple[str, str, int], tuple[Masking, Tensor]]:
    """Of each line one, and the rows [B] that any of its masks takes."""
    lines: dict[tuple[str, str, int], tuple[Masking, Tensor]] = {}
    for each in masks:
        lines[each.at] = each, each.is_row_lost | lines[each.at][1] if each.at in lines else each.is_row_lost
    return lines


def _masked(sp: BuiltModule, x: Tensor, seed: int) -> tuple[Tensor, list[Masking], int]:
    """The output with that seed, and the masks with one draw for all tokens of a row."""
    run = BuiltModule(seeded(sp.subject, seed), sp.module, sp.dtype)
    with random_masks(sp.module, sp.subject.packages, len(x)) as masks:
        output = run(x)
    return output, [each for each in masks.found if _is_by_row(each, len(x), output.shape[1])], masks.num_applied


def _is_by_row(masking: Masking, rows: int, length: int) -> bool:
    """Whether one value is drawn for each row, which has more than one number for each token, and keeps or loses all.

    A vector of the whole row, or of the token at hand, may stand for it.
    """
    axes = [size for axis, size in enumerate(masking.dropped.shape) if size > 1 and axis != masking.batch_axis]
    has_tokens = len(axes) > 1 or (len(axes) == 1 and (masking.is_integer or axes[0] != length))
    is_touched = masking.dropped.movedim(masking.batch_axis, 0).flatten(1).any(1)
    is_whole = bool((is_touched == masking.is_row_lost).all()) and not bool(masking.is_row_lost.all())
    return has_tokens and is_whole and all(prod(each.shape) == rows for each in masking.draws)


def _with_others(sp: BuiltModule, x: Tensor, rows: Tensor) -> Tensor:
    """The input with other values at all tokens of some rows."""
    generator = torch.Generator().manual_seed(sp.subject.seed + 17)
    if x.is_floating_point():
        other = torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x)
    else:
        other = (x + 1 + torch.randint(max(1, sp.subject.width - 1), x.shape, generator=generator).to(x)) % (
            sp.subject.width
        )
    return torch.where(rows.reshape(-1, *(1,) * (x.ndim - 1)), other, x)


def _are_read_in_evaluation(sp: BuiltModule, x: Tensor) -> bool:
    """Whether every row's output is another for other values."""
    evaluated = built(sp.subject, mode="eval")
    with torch.no_grad():
        seed_everything(sp.subject.seed)
        outputs = [evaluated(each) for each in (x, _with_others(sp, x, torch.ones(len(x), dtype=torch.bool)))]
    return bool((outputs[0] != outputs[1]).flatten(1).any(1).all())
