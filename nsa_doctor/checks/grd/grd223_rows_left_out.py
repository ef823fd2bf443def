"""GRD223 rows-left-out

Detects: rows of a batch that a training step takes no gradient of, whatever they hold, as it clears what their backward
pass left before its optimizer steps. Where nothing is cleared it is a note: a step may leave rows out on purpose, as
those that it only evaluates. A loop that is handed its micro-batches is GRD214's.
Matters: a part of each batch is paid for and trains nothing; the loss that is logged may well count it.
Fix: clear gradients once, before the first of the backward passes of a step.

Example:
    # faulty
    for part in batch.chunk(4):
        optimizer.zero_grad()
        (loss_of(part) / 4).backward()
    optimizer.step()
    # correct
    optimizer.zero_grad()
    for part in batch.chunk(4):
        (loss_of(part) / 4).backward()
    optimizer.step()
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import lengths_for, ordinary_input
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.cleared import first_clearing
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.stepping import Step, first_step, twin
from nsa_doctor.subject.contract import Subject

_FILLS = 4
_ROWS, _MORE_ROWS = 4, 12  # which many numbers of micro-batches, and sizes of them, divide


def run(subject: Subject) -> Iterator[Finding | Note]:
    if subject.loop is not None:
        raise NotApplicableError("its loop is handed its micro-batches")
    sp, length = built(subject, mode="train"), lengths_for(subject)[0]
    if not _left_out(sp, length, _ROWS, 0):
        return
    left_out = set(range(_MORE_ROWS))
    for fill in range(_FILLS):  # by what they hold, others are left out
        if left_out:
            left_out &= set(_left_out(sp, length, _MORE_ROWS, fill))
    if not left_out:
        return
    x = ordinary_input(sp, length, _MORE_ROWS, subject.seed)
    copied = _copy(sp)
    cleared = first_clearing(copied.module, subject.packages, lambda: first_step(copied, x, 0.0))
    rows = ", ".join(map(str, sorted(left_out)))
    message = f"what {len(left_out)} of {_MORE_ROWS} rows of a batch hold changes no gradient of a training step at "
    message += f"S={length} (rows {rows})"
    if cleared is not None:
        yield Finding(
            message=f"{message}; gradients are cleared between its backward passes",
            where=cleared,
            evidence={"length": length, "rows": rows},
            control="other rows do",
            repro=command_for(subject, "GRD223"),
        )
    else:
        yield Note(message=message, where=_step(sp, x).place)


def _left_out(sp: BuiltModule, length: int, num_rows: int, fill: int) -> list[int]:
    """Rows whose values change no gradient, where those of others do; empty where there are none."""
    x, others = (ordinary_input(sp, length, num_rows, sp.subject.seed + 2 * fill + shift) for shift in (0, 1))
    step = _step(sp, x)
    if step.num_calls > 1:
        raise NotApplicableError("its training step steps several times")
    plain, again = step.gradients, _step(sp, x).gradients
    if not plain:
        return []
    if not _are_equal(plain, again):
        raise NotComparableError("two steps on one batch have other gradients, so nothing can be compared with them")
    without = []
    for row in range(num_rows):
        changed = x.clone()
        changed[row] = others[row]
        if _are_equal(plain, _step(sp, changed).gradients):
            without.append(row)
    return without if len(without) < num_rows else []


def _step(sp: BuiltModule, x: Tensor) -> Step:
    return first_step(_copy(sp), x, 0.0)


def _copy(sp: BuiltModule) -> BuiltModule:
    copied = twin(sp)
    if copied is None:
        raise NotComparableError("the module cannot be copied, so no step can be taken twice")
    return copied


def _are_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def planted(subject: Subject) -> Subject:
    def last_alone(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        for part in x.chunk(2):
            optimizer.zero_grad()
            loss = subject.forward(module, part).square().mean() / 2
            loss.backward()
        optimizer.step()
        return loss

    return replace(subject, train_step=last_alone)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("train_step",), blocked_by=("GRD205",), priority=463)
