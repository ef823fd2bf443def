"""Every loss that a subject gives: by its seams, and by methods of its module that take an input or its answers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from nsa_doctor.checks._shared.pair_losses import SEAMS, batch_of, call_of_seam, targets_for
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.text import numbers
from nsa_doctor.probes.behaviour.loss_calls import LossCall, ways_to_call
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 17, (5, 8, 1)
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class AskedLoss:
    """A loss by what it is called, the module whose it is, and a call of it that may raise.

    is_enough: no other way to call it need be tried where this one is served.
    """

    name: str
    sp: BuiltModule
    call: Callable[[], Any]
    is_enough: bool = False


def first_seen(
    subject: Subject,
    look: Callable[[BuiltModule, Callable[[], Any]], Sequence[Seen] | Caught],
    is_wanted: Callable[[LossCall], bool] = lambda _loss: True,
    *,
    is_as_it_starts: bool = False,
) -> tuple[AskedLoss, Seen] | None:
    """The first that is seen in a call of a loss: of the seams, or of those of the module that are wanted.

    is_as_it_starts: of the module in its own dtype, with the weights that it is made with. NotApplicableError where
    there is no loss, NotComparableError where every call raises.
    """
    was_served = False
    for ways in _every_loss(subject, is_wanted, is_as_it_starts):
        for asked in ways:
            seen = look(asked.sp, asked.call)
            if not isinstance(seen, Caught):
                was_served = True
                if seen:
                    return asked, seen[0]
                if asked.is_enough:
                    break
    if was_served:
        return None
    if seams := [seam for seam in SEAMS if subject.offers(seam)]:
        raise NotComparableError(f"{seams[0]} raised for {numbers(_ROWS)} rows")
    raise NotApplicableError("it offers no training step and no loss that could be asked for")


def _every_loss(
    subject: Subject, is_wanted: Callable[[LossCall], bool], is_as_it_starts: bool
) -> Iterator[Iterator[AskedLoss]]:
    """Calls of every loss: those of the seams, and the module's own with targets of any shape."""
    for seam in SEAMS:
        if subject.offers(seam):
            yield (_of_seam(subject, seam, rows, is_as_it_starts) for rows in _ROWS)
    sp = _made(subject, is_as_it_starts)
    found = attempt(lambda: [each for each in ways_to_call(sp.module, is_alone=True) if is_wanted(each)])
    for loss in [] if isinstance(found, Caught) else found:
        yield _of_method(sp, loss)


def _of_seam(subject: Subject, seam: str, rows: int, is_as_it_starts: bool) -> AskedLoss:
    """A call with so many rows, which are enough where they are served: one row has many meanings."""
    length = min(_LENGTH, subject.max_length)
    sp, call = call_of_seam(subject, seam, rows, length, is_randomised=not is_as_it_starts)
    return AskedLoss(seam, sp, call, is_enough=True)


def _of_method(sp: BuiltModule, loss: LossCall) -> Iterator[AskedLoss]:
    batch = batch_of(sp, _ROWS[0])
    name = f"{loss.name}({', '.join(loss.takes.values())})"
    for targets in targets_for(sp, batch) if "targets" in loss.takes else [None]:
        yield AskedLoss(name, sp, partial(loss.answer, sp, replace(batch, targets=targets)))


def _made(subject: Subject, is_as_it_starts: bool) -> BuiltModule:
    if is_as_it_starts:
        return built(subject, mode="train", is_randomised=False)
    return comparable_module(subject, mode="train")
