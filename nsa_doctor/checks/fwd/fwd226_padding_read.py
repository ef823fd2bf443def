"""FWD226 padding-read

Detects: a row with padding that its mask marks, whose own tokens come out not finite, depend on what stands in the
padding, raise, or, with the padding behind them, are other than those of the row alone. An output that is shorter than
the batch where every row of it has padding. A mask of padding in whose presence later tokens are read.
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

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, SubjectFailedError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.padded_rows import PaddedRow
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.compare import baseline
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject, WrongOutputError

_LENGTH, _PADDING = 37, 10
_SECOND = slice(1, 2)  # of two rows


def run(subject: Subject) -> Iterator[Finding]:
    sp, length = comparable_module(subject), min(_LENGTH, subject.max_length)
    if length <= 2 * _PADDING:
        raise NotApplicableError(f"it serves {length} tokens, which leave no room for padding")
    with torch.no_grad(), unobserved():
        later = attempt(PaddedRow(sp, length, _PADDING, is_left=False).future)
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
    for is_left in (True, False):
        row = PaddedRow(sp, length, _PADDING, is_left)
        side = "left" if is_left else "right"
        with torch.no_grad(), unobserved():  # what it raises, and padded tokens that are not finite, are judged here
            is_length = is_left and attempt(row.is_mask_counted) is True  # of a row's tokens, which stand first
            fault = None if is_length else _fault(sp, row)
        if fault is not None:
            message, place = fault
            yield Finding(
                message=f"{message}, with {_PADDING} of a row's {length} tokens masked as padding, on the {side}",
                where=place,
                evidence={"length": length, "padding": _PADDING, "side": side},
                repro=command_for(subject, "FWD226"),
            )
            return


def _fault(sp: BuiltModule, row: PaddedRow) -> tuple[str, Place] | None:
    """What is wrong with the row's own tokens, and where."""
    try:
        first, second = row.output(), row.output(padding=1)
    except SubjectFailedError as failure:
        return _trouble(sp, failure)
    bad = (~isfinite(first)).flatten(2).any(-1)
    if bool(bad.any()):
        return f"{int(bad.sum())} of {bad.numel()} of the row's own tokens are not finite", row.birth()
    base = baseline(sp, row.input)
    found = base.departure(second, _SECOND, row.own, expected=first)
    if found is not None and row.is_mask_lost():
        return f"padding is read, and the mask changes nothing: {found.text}", definition_place(sp.module)
    if found is not None:
        return f"padding is read: its content changes the row's own tokens: {found.text}", row.reading()
    found = None if row.is_left else base.departure(first, _SECOND, row.own, expected=row.alone())
    masked = found and base.departure(first, _SECOND, row.own, expected=row.alone(is_masked=True))
    if found is None or masked is None:
        return None if row.is_left else _fault_by_itself(sp, row)
    return f"a row's own tokens are other than those of the row alone: {found.text}", row.counting()


def _fault_by_itself(sp: BuiltModule, row: PaddedRow) -> tuple[str, Place] | None:
    """What is wrong where no row of the batch is as long as the batch is, which one of two was so far."""
    try:
        row.by_itself()
    except SubjectFailedError as failure:
        message, place = _trouble(sp, failure)
        return f"where every row of the batch is padded, {message}", place
    return None


def _trouble(sp: BuiltModule, failure: SubjectFailedError) -> tuple[str, Place]:
    trouble = trouble_of(failure, sp.subject.packages)
    is_returned = isinstance(failure.caught.error, WrongOutputError)
    return trouble.message if is_returned else f"the subject raises {trouble.message}", trouble.place


def planted(subject: Subject) -> Subject:
    padded = subject.padded
    assert padded is not None

    def averages_padding_too(module: nn.Module, x: Tensor, keep: Tensor) -> Tensor:
        output = padded(module, x, keep)
        return output + 0.1 * x.to(output.dtype).flatten(1).mean(1)[:, None, None]

    return replace(subject, padded=averages_padding_too)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, needs=("padded",), blocked_by=("FWD101", "FWD201", "FWD206", "NAN101")
)
