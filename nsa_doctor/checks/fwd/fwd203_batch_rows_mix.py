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
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import ANOTHER_SEED, departure_finding, middle_lengths, odd_lengths, one
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.numerics.compare import Baseline, Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_NUM_ROWS = 5
_MODES: tuple[Mode, ...] = ("eval", "train")
_ORDINARY = "other rows"
_ROWS_LIKE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # of ordinary ones, and of the row that is held
    _ORDINARY: lambda x, own: x,
    "other rows of zeros": lambda x, own: torch.zeros_like(x),
    "other rows of one value": lambda x, own: x.amax((1, *range(2, x.ndim)), keepdim=True).expand_as(x),
    "other rows that begin with zeros": lambda x, own: torch.cat((torch.zeros_like(x[:, ::2]), x[:, 1::2]), 1),
    "other rows that end with zeros": lambda x, own: torch.cat((x[:, 1::2], torch.zeros_like(x[:, ::2])), 1),
    "other rows equal to it in place of others": lambda x, own: own.expand_as(x),
}


@dataclass(frozen=True)
class Plan:
    """A length, a mode, and which rows are held while the others change: a call each, beside one without a change."""

    length: int
    mode: Mode
    held: tuple[tuple[str, int], ...]


def run(subject: Subject) -> Iterator[Finding]:
    yield from one(_examine(subject, plan) for plan in _plans(subject))


def _plans(subject: Subject) -> Iterator[Plan]:
    """The first row and the last are held in turn; at the first length both are, and all kinds of others are tried."""
    modes = [mode for mode in _MODES if mode in subject.modes]
    lengths = [(length, mode) for mode in modes for length in odd_lengths(subject)[:2]]
    lengths += [(length, "eval") for length in middle_lengths(subject)[1:2]]
    kinds = list(_ROWS_LIKE) if "eval" in modes and subject.profile != "smoke" else [_ORDINARY]
    for number, (length, mode) in enumerate(lengths[:1] if subject.is_slow else lengths):
        turns = [(kind, -((number + turn) % 2)) for turn, kind in enumerate([_ORDINARY] if number else kinds)]
        yield Plan(length, mode, tuple(turns if number else [*turns, (_ORDINARY, -1)]))


def _examine(subject: Subject, plan: Plan) -> Finding | None:
    seen = _mixed(subject, plan)
    if seen is None:
        return None
    like, row, found = seen
    other_seed = replace(subject, seed=subject.seed + ANOTHER_SEED)
    if _mixed(other_seed, replace(plan, held=((like, row),))) is None:
        return None
    built = comparable_module(subject, mode=plan.mode)
    x = built.input(plan.length, _NUM_ROWS)
    other = _with_other_rows(built, x, row % _NUM_ROWS, like)
    divergence = first_divergence(built, lambda: built(x), lambda: built(other), {_NUM_ROWS: 1 if row == 0 else -1})
    message = f"{like} of the batch change a row's output at B={_NUM_ROWS}, S={plan.length} ({plan.mode})"
    return departure_finding(subject, "FWD203", message, divergence, found, length=plan.length, mode=plan.mode)


def _mixed(subject: Subject, plan: Plan) -> tuple[str, int, Departure] | None:
    """The first kind of other rows that changes the row held, that row, and how."""
    built = comparable_module(subject, mode=plan.mode)
    base = baseline(built, built.input(plan.length, _NUM_ROWS))
    changes = ((like, row, _change(base, like, row)) for like, row in plan.held)
    return next(((like, row, found) for like, row, found in changes if found is not None), None)


def _change(base: Baseline, like: str, row: int) -> Departure | None:
    row %= _NUM_ROWS
    changed = base.built(_with_other_rows(base.built, base.x, row, like)).detach()
    found = base.departure(changed[row : row + 1], rows=slice(row, row + 1))
    return None if found is None else replace(found, first_row=row)


def _with_other_rows(built: BuiltModule, x: Tensor, row: int, like: str) -> Tensor:
    own, others = x[row : row + 1], built.input(x.shape[1], _NUM_ROWS, seed=built.subject.seed + 1)
    return torch.cat(((others := _ROWS_LIKE[like](others, own))[:row], own, others[row + 1 :]))


def planted(subject: Subject) -> Subject:
    def centred_over_the_batch(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output - 0.5 * output.mean(0, keepdim=True)

    return replace(subject, forward=centred_over_the_batch)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD206",), priority=430, telling=True
)
