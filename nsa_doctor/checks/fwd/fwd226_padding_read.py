"""FWD226 padding-read

Detects: a row with padding that its mask marks, whose own tokens come out not finite, depend on what stands in the
padding, raise, or, with the padding behind them, are other than those of the row alone. An output that is shorter than
the batch where every row of it has padding. A mask of padding in whose presence later tokens are read. A part that
pools tokens and, under a mask that hides nothing, gives so many times what it does without one, or, where it is named
after a mean, more the more equal tokens there are.
Matters: batches are padded; a row then gets another answer for the length of its neighbours, or NaN.
Fix: mask padding as keys in every layer, with a finite value where a query may see nothing else, and as zeros in what
is summed or convolved over tokens; give `pad_packed_sequence` its `total_length`.

Example:
    # faulty
    scores = scores.masked_fill(~mask, -torch.inf)  # the row of a padded query is NaN, and a key of the next layer
    # correct
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.padding import fault_of
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.masked_pools import PoolFault
from nsa_doctor.probes.attention.padded_rows import PaddedRow, masks_by_place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _PADDING = 37, 10
_LONGER = (300, 110)  # of several pieces, where a sequence is worked off in such


def run(subject: Subject) -> Iterator[Finding]:
    sp, length = comparable_module(subject), min(_LENGTH, subject.max_length)
    if length <= 2 * _PADDING:
        raise NotApplicableError(f"it serves {length} tokens, which leave no room for padding")
    with torch.no_grad(), unobserved():
        later = attempt(PaddedRow(sp, length, _PADDING, is_left=False).future)
        pooled = attempt(PaddedRow(comparable_module(subject), length, _PADDING, is_left=False).pooled)
    if isinstance(later, tuple):
        cut, found, place = later
        yield Finding(
            message=f"under a mask that hides nothing tokens >= {cut} change the output before them, which they do not "
            f"without a mask: {found.text} at S={length}",
            where=place,
            evidence={"length": length, "cut": cut},
            repro=command_for(subject, "FWD226"),
        )
        return
    if isinstance(pooled, PoolFault):
        yield Finding(message=pooled.text, where=pooled.place, repro=command_for(subject, "FWD226"))
        return
    sizes = [(length, _PADDING), *([] if subject.is_slow or subject.max_length < _LONGER[0] else [_LONGER])]
    sides = (True, False) if masks_by_place(subject) else (False,)
    for (length, padding), is_left in product(sizes, sides):
        row = PaddedRow(sp, length, padding, is_left)
        side = "left" if is_left else "right"
        with torch.no_grad(), unobserved():  # what it raises, and padded tokens that are not finite, are judged here
            served = attempt(row.where_finite)
            row = served if isinstance(served, PaddedRow) else row
            is_length = is_left and attempt(row.is_mask_counted) is True  # of a row's tokens, which stand first
            fault = None if is_length else fault_of(row.sp, row)
            if fault is not None and is_left and _is_right_behind(row):
                continue
        if fault is not None:
            message, place = fault
            yield Finding(
                message=f"{message}, with {padding} of a row's {length} tokens masked as padding, on the {side}",
                where=place,
                evidence={"length": length, "padding": padding, "side": side},
                repro=command_for(subject, "FWD226"),
            )
            return


def _is_right_behind(row: PaddedRow) -> bool:
    """Whether padding behind a row's tokens is left out, for which a mask is meant by which no part mixes tokens."""
    behind = replace(row, is_left=False)
    return attempt(row.is_mask_for_the_end) is True and attempt(lambda: fault_of(behind.sp, behind)) is None


def planted(subject: Subject) -> Subject:
    padded = subject.padded
    assert padded is not None

    def adds_padding(module: nn.Module, x: Tensor, keep: Tensor) -> Tensor:
        output = padded(module, x, keep)
        values = x.to(output.dtype).reshape(*x.shape[:2], -1).mean(-1)
        return output + 0.1 * (values * ~keep.bool()).sum(1)[:, None, None]

    return replace(subject, padded=adds_padding)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, needs=("padded",), blocked_by=("FWD101", "FWD201", "FWD206", "NAN101")
)
