"""Where a loss is of all pairs of answers and targets: by the seams that take one, and by the module's own losses."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, NotComparableError, attempt
from nsa_doctor.probes.behaviour.broadcast_losses import Broadcast, broadcasts
from nsa_doctor.probes.behaviour.loss_calls import Batch, LossCall, ways_to_call
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.model.training import new_optimizer
from nsa_doctor.subject.contract import Subject

SEAMS = ("train_step", "loss")
_LENGTH, _SHORTER = 17, 3
_ROWS = (5, 7)  # none of them a number of tokens, channels or heads, and a loop makes no two micro-batches of them


def pairs_in_seam(subject: Subject, seam: str) -> Broadcast | None:
    """The first of the seam's loss; NotComparableError where no call of it comes to its end.

    It has to be there with either number of rows: sizes may be equal by chance. One row is asked for where several
    raise, as [B, S, 1] and [B, S] do.
    """
    length = min(_LENGTH, subject.max_length)
    many = [_of_seam(subject, seam, rows, length) for rows in _ROWS]
    if any(isinstance(each, list) for each in many):
        return _first_of_all(many)
    single = [_of_seam(subject, seam, 1, each) for each in (length, max(2, length - _SHORTER))]
    if not any(isinstance(each, list) for each in single):
        raise NotComparableError(f"{seam} raised for {_ROWS[0]} rows and for one")
    return _first_of_all(single)


def calls_of_losses(sp: BuiltModule) -> list[LossCall]:
    """The losses of the module that take targets."""
    found = attempt(lambda: [each for each in ways_to_call(sp.module) if "targets" in each.takes])
    return [] if isinstance(found, Caught) else found


def pairs_in_call(sp: BuiltModule, call: LossCall) -> tuple[bool, Broadcast | None]:
    """Whether a loss took targets of any shape, and what it broadcasts with all those that it takes.

    One that takes targets of a shape without it was given others of the wrong shape.
    """
    found: list[list[Broadcast] | Caught] = []
    for rows in _ROWS:
        batch = batch_of(sp, rows)
        seen = (_of_call(sp, call, replace(batch, targets=targets)) for targets in targets_for(sp, batch))
        served = [each for each in seen if isinstance(each, list)]
        if not served or not all(served):
            return bool(served), None
        found.append([spread for each in served for spread in each])
    return True, _first_of_all(found)


def _of_seam(subject: Subject, seam: str, rows: int, length: int) -> list[Broadcast] | Caught:
    return broadcasts(*call_of_seam(subject, seam, rows, length), rows)


def call_of_seam(
    subject: Subject, seam: str, rows: int, length: int, *, is_randomised: bool = True
) -> tuple[BuiltModule, Callable[[], Any]]:
    """The subject built afresh, and a call of that seam with so many rows of so many tokens."""
    sp = built(subject, mode="train", is_randomised=is_randomised)
    x = sp.input(length, rows)
    call: Callable[[], Any]
    if seam == "loss":
        loss = subject.loss
        assert loss is not None
        call = lambda: loss(sp.module, x.clone())  # noqa: E731
    else:
        step = subject.train_step
        assert step is not None
        optimizer = new_optimizer(sp.module, 0.0)
        call = lambda: step(sp.module, optimizer, x.clone())  # noqa: E731
    seed_everything(subject.seed)
    return sp, call


def _of_call(sp: BuiltModule, call: LossCall, batch: Batch) -> list[Broadcast] | Caught:
    return broadcasts(sp, lambda: call.answer(sp, batch), len(batch.x))


def _first_of_all(found: list[list[Broadcast] | Caught]) -> Broadcast | None:
    """The first one of pairs that every call has at one line, more of them the more it was given."""
    lists = [[each for each in one if each.is_of_pairs] for one in found if isinstance(one, list)]
    if len(lists) < len(found):
        return None
    alike = ((one, other) for one in lists[0] for other in lists[1] if one.line == other.line)
    return next((one for one, other in alike if one.result.numel() != other.result.numel()), None)


def batch_of(sp: BuiltModule, rows: int) -> Batch:
    """So many rows without padding."""
    length = min(_LENGTH, sp.subject.max_length)
    x = sp.input(length, rows)
    return Batch(x=x, lengths=torch.full((rows,), length, device=x.device))


def targets_for(sp: BuiltModule, batch: Batch) -> Iterator[Tensor]:
    """Labels and values of every shape that may be meant: of rows or tokens, with an axis of 1 or without."""
    generator = torch.Generator().manual_seed(sp.subject.seed + 1)
    rows, length = batch.x.shape[:2]
    with torch.no_grad(), unobserved():
        output = attempt(lambda: sp(batch.x))
    shapes = [(rows,), (rows, 1), (rows, length), (rows, length, 1)]
    if isinstance(output, Tensor):
        shapes += [
            each for each in (tuple(output.shape), tuple(output.shape[:1] + output.shape[2:])) if each not in shapes
        ]
    dtype = output.dtype if isinstance(output, Tensor) and output.is_floating_point() else torch.float32
    for shape in shapes:
        yield torch.rand(shape, generator=generator).to(batch.x.device, dtype)
        yield torch.randint(0, 2, shape, generator=generator).to(batch.x.device)
