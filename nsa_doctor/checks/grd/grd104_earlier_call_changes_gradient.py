"""GRD104 earlier-call-changes-gradient

Detects: a training pass that gives other gradients, or another output, than an equal one before it: at every so many
calls, after `eval()`, `state_dict()` or a copy, after other lengths, batches or dtypes, when gradients are added up,
or when the input needs none.
Matters: gradients that are right in the first step, which is the one that is tested, are wrong in those that train.
Fix: look at the line named: a backward or hook that counts its calls, in an attribute or a buffer, or keeps what it
saw, a flag that `eval()` sets and `train()` does not take back, an attribute that belongs into a buffer.

Example:
    # faulty
    self.mask = self.mask if self.mask is not None else (torch.rand(heads) > p)  # of the first call, for ever
    # correct
    mask = torch.rand(heads) > p
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.earlier import Replays
from nsa_doctor.checks._shared.progress import is_progress
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.call_schedule import further_repeats, repeated_training, trained, training_steps
from nsa_doctor.probes.numerics.earlier_calls import Cause, Judge, Seen, differs_by, first_seen
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.subject.contract import Subject

_LENGTH = 17


def run(subject: Subject) -> Iterator[Finding | Note]:
    if "train" not in subject.modes:
        raise NotApplicableError("it does not run in training mode")
    sp = comparable_module(subject)
    judge = differs_by(finest_precision(sp, sp.input(min(_LENGTH, subject.max_length))).eps)
    replays = Replays(subject, sp.dtype, "train")
    steps = training_steps(subject, further_repeats(sp, trained(subject)))
    seen = first_seen(replays.fresh(), steps, judge)
    if seen is not None:
        cause = replays.cause(seen, judge)
        if is_progress(replays, seen, cause, judge):
            message = f"training passes change the output of later ones by state outside of buffers, {cause.words}"
            yield Note(message=message, where=definition_place(seen.outcome.module))
            return
        yield replays.finding("GRD104", seen, cause)
        return
    going_on = Replays(subject, sp.dtype, "train", goes_on="everything")
    if going_on.fresh().moves_running_state(trained(subject)) and _first_fault(going_on, judge) is not None:
        counting = Replays(subject, sp.dtype, "train", goes_on="counts")  # biases that balance move the output too
        if (fault := _first_fault(counting, judge)) is not None:
            yield counting.finding("GRD104", *fault)


def _first_fault(replays: Replays, judge: Judge) -> tuple[Seen, Cause] | None:
    """What differs first in equal training passes, and by what, unless it is how training goes on."""
    seen = first_seen(replays.fresh(), repeated_training(replays.subject), judge)
    if seen is None:
        return None
    cause = replays.cause(seen, judge)
    return None if is_progress(replays, seen, cause, judge) else (seen, cause)


class _TwiceAtEverySecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: list[int]) -> Tensor:
        ctx.count = count
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.count[0] += 1
        return gradients[0] * (1 + ctx.count[0] % 2), None


def planted(subject: Subject) -> Subject:
    def counts_its_backward(module: nn.Module, x: Tensor) -> Tensor:
        count = vars(module).setdefault("count_of_backward", [1])
        output: Tensor = _TwiceAtEverySecond.apply(subject.forward(module, x), count)
        return output

    return replace(subject, forward=counts_its_backward)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD103", "FWD206", "FWD208", "FWD210", "NAN101", "NAN102"),
    explained_by=("FWD103", "FWD208", "FWD210", "GRD102", "GRD4"),
    priority=515,
)
