"""Every call of a subject that computes something to be looked at: its forward in each mode, then its losses."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from nsa_doctor.checks._shared.every_loss import AskedLoss, Seen, first_seen
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 17, 3


def first_seen_in_calls(
    subject: Subject,
    look: Callable[[BuiltModule, Callable[[], Any]], Sequence[Seen] | Caught],
    inputs: Callable[[Tensor], Sequence[Tensor]] = lambda x: (x,),
) -> tuple[AskedLoss, Seen] | None:
    """The first that is seen in forward, in each mode, or in a loss: of the module in its own dtype as it starts.

    `inputs` are what forward is called with, made of an input [B, S, ...].
    """
    for mode in subject.modes:
        sp = built(subject, mode=mode, is_randomised=False)
        for x in inputs(sp.input(min(_LENGTH, subject.max_length), _ROWS)):
            call = lambda sp=sp, x=x: sp(x)  # noqa: E731
            seen = look(sp, call)
            if not isinstance(seen, Caught) and seen:
                return AskedLoss("forward", sp, call), seen[0]
    try:
        return first_seen(subject, look, is_as_it_starts=True)
    except (NotApplicableError, NotComparableError):
        return None
