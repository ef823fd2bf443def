"""The ways to call a module that take times beside its input: its forward, steps of decoding, losses of its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from nsa_doctor.checks._shared.pair_losses import targets_for
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.behaviour.loss_calls import Batch, LossCall, ways_to_call
from nsa_doctor.probes.behaviour.lost_times import arguments_of_times
from nsa_doctor.probes.behaviour.optional_arguments import giving_instead
from nsa_doctor.probes.behaviour.timed_decoding import decoded_with
from nsa_doctor.probes.model.built_module import BuiltModule


@dataclass(frozen=True)
class AskedWithTimes:
    """What takes times, by which argument, and a call of it with some."""

    name: str
    argument: str
    call: Callable[[Tensor], Tensor]


def asked_with_times(sp: BuiltModule, x: Tensor) -> Iterator[AskedWithTimes]:
    """Each of them, for the input x [B, S, ...]."""
    for argument in arguments_of_times(sp.module.forward):
        yield AskedWithTimes("forward", argument, partial(_answer, sp, x, argument))
        if sp.subject.offers("prefill") and sp.subject.offers("step"):
            yield AskedWithTimes("forward, in steps,", argument, partial(decoded_with, sp, x, argument))
    calls = attempt(lambda: list(ways_to_call(sp.module, is_alone=True)))
    served: set[str] = set()
    for loss in [] if isinstance(calls, Caught) else calls:
        names = arguments_of_times(getattr(sp.module, loss.name)) if loss.name not in served | {"forward"} else []
        batch = _batch_for(sp, x, loss) if names else None
        if batch is not None:
            served.add(loss.name)
            for argument in names:
                yield AskedWithTimes(loss.name, argument, partial(_loss, sp, loss, batch, argument))


def _answer(sp: BuiltModule, x: Tensor, name: str, times: Tensor) -> Tensor:
    with giving_instead(sp.module, {name: times}):
        return sp(x)


def _batch_for(sp: BuiltModule, x: Tensor, loss: LossCall) -> Batch | None:
    """A batch of whole rows with which the loss is served, with targets where it asks for them."""
    batch = Batch(x=x, lengths=torch.full((len(x),), x.shape[1], device=x.device))
    every = targets_for(sp, batch) if "targets" in loss.takes else iter([None])
    tried = (replace(batch, targets=targets) for targets in every)
    return next((each for each in tried if isinstance(attempt(partial(loss.answer, sp, each)), Tensor)), None)


def _loss(sp: BuiltModule, loss: LossCall, batch: Batch, name: str, times: Tensor) -> Tensor:
    return replace(loss, beside={name: times}).answer(sp, batch).reshape(())
