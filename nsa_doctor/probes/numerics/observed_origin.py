"""Where values that one call of a check gave were first not finite: the call is made again from a snapshot, traced."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import GRADIENTS, OUTPUT, NonfiniteOrigin
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.tracer import Tracer
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.model.snapshot import Snapshot
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.numerics.nonfinite_origin import Returned, origins, origins_of_one_pass
from nsa_doctor.probes.tensors.answer import split_answer
from nsa_doctor.subject.contract import Subject

_MOST_REPEATS = 32


@dataclass(frozen=True, kw_only=True)
class Located:
    """What was found: the origin, if any, and among how many repetitions of the call with other draws it was seen."""

    origin: NonfiniteOrigin | None = None
    num_seen: int = 0
    num_repeats: int = 0


def locate(subject: Subject, snapshot: Snapshot, wants_gradients: bool, until: float) -> Located:
    """Make the call again as it was; where it is finite then, again and again on one module, with ever new draws.

    No further repetition begins once `time.monotonic` has come to `until`.
    """
    frames = FrameFilter(subject.packages)
    with preserved_state(), warnings.catch_warnings(), unobserved():
        warnings.simplefilter("ignore")
        same = attempt(lambda: origins(lambda tracer: _made(subject, snapshot, tracer, wants_gradients), frames))
        if not isinstance(same, Caught) and same is not None and same[1]:
            return Located(origin=same[1][0])
        return _repeated(subject, snapshot, frames, wants_gradients, until)


def _made(subject: Subject, snapshot: Snapshot, tracer: Tracer, wants_gradients: bool) -> Returned:
    module, args, kwargs = snapshot.again()
    return _traced(subject, module, snapshot, (args, kwargs), tracer, wants_gradients)


def _repeated(
    subject: Subject, snapshot: Snapshot, frames: FrameFilter, wants_gradients: bool, until: float
) -> Located:
    """One module and one stream of random numbers: a fault by chance or by the number of the call comes back."""
    module, _, kwargs = snapshot.again()
    origin, seen, repeats = None, 0, 0
    while repeats < _MOST_REPEATS and time.monotonic() < until:
        repeats += 1
        given = (snapshot.given(), kwargs)
        again = attempt(
            lambda given=given: origins_of_one_pass(
                lambda tracer: _traced(subject, module, snapshot, given, tracer, wants_gradients), frames
            )
        )
        if not isinstance(again, Caught) and again:
            seen, origin = seen + 1, origin or again[0]
    return Located(origin=origin, num_seen=seen, num_repeats=repeats)


def _traced(
    subject: Subject,
    module: nn.Module,
    snapshot: Snapshot,
    given: tuple[tuple[Any, ...], dict[str, Any]],
    tracer: Tracer,
    wants_gradients: bool,
) -> Returned:
    """The outputs of one call under a tracer and, where they are wanted, its gradients."""
    args, kwargs = given
    x = next(each for each in args if isinstance(each, Tensor))
    tracer.know(module, x)
    module.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(snapshot.has_grad or wants_gradients):
        with tracer.phase("forward"):
            answer = getattr(subject, snapshot.seam)(module, *args, **kwargs)
        output, _ = split_answer(answer, lambda tensor: tensor.is_floating_point() and tensor.ndim > 2)
        made: list[tuple[str, Mapping[str, Tensor]]] = [
            (OUTPUT, {OUTPUT: output} if isinstance(output, Tensor) else {})
        ]
        if wants_gradients and isinstance(output, Tensor) and output.requires_grad:
            loss = (output * make_cotangent(output, subject.seed)).sum()
            tracer.follow(loss)
            with tracer.phase("backward"):
                loss.backward()
            made.append((GRADIENTS, _gradients(module)))
    return made


def _gradients(module: nn.Module) -> Mapping[str, Tensor]:
    return {name: value.grad for name, value in module.named_parameters() if value.grad is not None}
