"""FWD203 batch-rows-mix

Detects: a row of a batch whose output changes when the other rows do.
Matters: sequences read each other: training leaks between documents, and results depend on who shares the batch.
Fix: look at the line named: a reshape that should be a transpose, a sum, sort or softmax over the batch, one choice of
blocks for all rows.

Example:
    # faulty
    weights = scores.softmax(0)  # [B, H, S, S]: over the batch
    # correct
    weights = scores.softmax(-1)
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import confirmed, departure_finding, middle_lengths, odd_lengths, one
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_NUM_ROWS = 5
_MODES: tuple[Mode, ...] = ("eval", "train")
_ORDINARY = "other rows"
_ROWS_LIKE: dict[str, Callable[[Tensor], Tensor]] = {  # of ordinary ones
    _ORDINARY: lambda x: x,
    "other rows of zeros": torch.zeros_like,
    "other rows of one value": lambda x: x.amax((1, *range(2, x.ndim)), keepdim=True).expand_as(x),
    "other rows that begin with zeros": lambda x: torch.cat((torch.zeros_like(x[:, ::2]), x[:, 1::2]), 1),
    "other rows that end with zeros": lambda x: torch.cat((x[:, 1::2], torch.zeros_like(x[:, ::2])), 1),
}


def run(subject: Subject) -> Iterator[Finding]:
    modes = [mode for mode in _MODES if mode in subject.modes]
    plans = [(length, mode) for mode in modes for length in odd_lengths(subject)[:2]]
    plans += [(length, "eval") for length in middle_lengths(subject)[1:2]]
    found = [(*plan, _ORDINARY) for plan in plans]
    if "eval" in modes and subject.profile != "smoke":
        found += [(odd_lengths(subject)[0], "eval", like) for like in _ROWS_LIKE if like != _ORDINARY]
    yield from one(_examine(subject, *plan) for plan in (found[:1] if subject.is_slow else found))


def _examine(subject: Subject, length: int, mode: Mode, like: str) -> Finding | None:
    found = confirmed(subject, lambda subject: _mixed(subject, length, mode, like))
    if found is None:
        return None
    built = comparable_module(subject, mode=mode)
    x = built.input(length, _NUM_ROWS)
    other = _with_other_rows(built, x, found.first_row, like)
    kept = 1 if found.first_row == 0 else -1
    divergence = first_divergence(built, lambda: built(x), lambda: built(other), {_NUM_ROWS: kept})
    message = f"{like} of the batch change a row's output at B={_NUM_ROWS}, S={length} ({mode})"
    return departure_finding(subject, "FWD203", message, divergence, found, length=length, mode=mode)


def _mixed(subject: Subject, length: int, mode: Mode, like: str) -> Departure | None:
    built = comparable_module(subject, mode=mode)
    base = baseline(built, built.input(length, _NUM_ROWS))
    for row in (0, _NUM_ROWS - 1):
        with torch.no_grad():
            changed = built(_with_other_rows(built, base.x, row, like))
        found = base.departure(changed[row : row + 1], rows=slice(row, row + 1))
        if found is not None:
            return replace(found, first_row=row)
    return None


def _with_other_rows(built: BuiltModule, x: Tensor, row: int, like: str) -> Tensor:
    other = _ROWS_LIKE[like](built.input(x.shape[1], _NUM_ROWS, seed=built.subject.seed + 1))
    return torch.cat((other[:row], x[row : row + 1], other[row + 1 :]))


def planted(subject: Subject) -> Subject:
    def centred_over_the_batch(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output - 0.5 * output.mean(0, keepdim=True)

    return replace(subject, forward=centred_over_the_batch)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD206",), priority=430, telling=True
)
