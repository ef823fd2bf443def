"""Lengths that a module refuses on purpose, by a raise or an assert of its own: those it does not claim to serve."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.input_discovery import WHOLE_IN_MANY, lightest_mode
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.measurement import Measurement, Point
from nsa_doctor.probes.model.deliberate import is_on_purpose
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.subject.contract import Subject

_WHOLE_IN_NOTHING = (17, 67)
_MULTIPLES = (1, 2, 3)
_LARGEST_STEP = 512
_LARGEST_ALONE = 2048


def in_whole_multiples(
    subject: Subject, module: nn.Module, refusal: Callable[[int], SubjectFailedError | None]
) -> Subject:
    """The subject, given whole multiples of a number of tokens alone, or that many, where its module serves no others.

    `refusal` says what a call of that length raises. What is raised on purpose is noted, and what merely fails at such
    a length is among what was `seen`. A module that fails at every length, and refuses some on purpose, serves others.
    """

    def refuses(length: int) -> bool:
        failure = refusal(length)
        return failure is not None and is_on_purpose(failure, subject.packages)

    def fails(length: int) -> bool:
        return refusal(length) is not None

    step = _step(module, fails) or _step(module, refuses)
    only = _only(module, fails, refuses) if step is None else None
    failure = refusal(only - 1) if only else None if step is None else refusal(step + 1)
    step = step or only
    if step is None or failure is None:
        return subject
    found = filled_up(subject, step)
    if is_on_purpose(failure, subject.packages):
        why = f"it refuses others, by {failure.caught.sentence}"
    else:
        point = Point(length=step + 1, dtype=subject.dtype, mode=lightest_mode(subject))
        found = replace(found, seen=(Measurement(point=point, trouble=trouble_of(failure, subject.packages)),))
        why = "it raises at others"
    whole = f"{step} tokens" if only else f"whole multiples of {step} tokens"
    note = f"sequences are filled up at their end to {whole}: {why}"
    return replace(found, notes=(*found.notes, note))


def filled_up(subject: Subject, step: int) -> Subject:
    """The subject whose forward is given whole multiples of `step` tokens: the last token again where some are missing.

    Nothing before the end may depend on that; the answer is cut.
    """
    if step == 1:
        return subject
    forward = subject.forward

    def filled(module: nn.Module, x: Tensor) -> Any:
        length = x.shape[1]
        missing = -length % step
        if not missing:
            return forward(module, x)
        last = x[:, -1:].expand(-1, missing, *x.shape[2:])
        whole = torch.cat((x, last), dim=1)
        output, others = checked_answer(subject, forward(module, whole), whole)
        return output[:, :length], {name: _cut(other, length, length + missing) for name, other in others.items()}

    return replace(subject, forward=filled, whole_multiples_of=step)


def _step(module: nn.Module, refuses: Callable[[int], bool]) -> int | None:
    """The least number whose multiples are served while others are refused; None where there is none."""
    if not all(refuses(length) for length in _WHOLE_IN_NOTHING):
        return None
    for step in _candidates(module):
        if refuses(step + 1) and not any(refuses(factor * step) for factor in _MULTIPLES):
            return step
    return None


def _only(module: nn.Module, fails: Callable[[int], bool], refuses: Callable[[int], bool]) -> int | None:
    """The one length that the module holds and serves, where shorter ones are refused and longer ones fail; or None."""
    if not all(fails(length) for length in _WHOLE_IN_NOTHING):
        return None
    served = (length for length in _held(module) if not fails(length))
    return next((each for each in served if refuses(each - 1) and fails(each + 1) and fails(2 * each)), None)


def _held(module: nn.Module) -> list[int]:
    """Whole numbers that the module's parts hold and that may be lengths, the largest first."""
    held = {value for part in module.modules() for value in vars(part).values() if type(value) is int}
    return sorted((value for value in held if 1 < value <= _LARGEST_ALONE), reverse=True)


def _candidates(module: nn.Module) -> Iterator[int]:
    """Usual sizes of blocks, and whole numbers that the module's parts hold, with twice those; the least first."""
    held = {value for part in module.modules() for value in vars(part).values() if type(value) is int}
    usual = {size for size in range(1, _LARGEST_STEP + 1) if WHOLE_IN_MANY % size == 0 or _LARGEST_STEP % size == 0}
    sizes = usual | held | {2 * value for value in held}
    yield from sorted(size for size in sizes if 1 < size <= _LARGEST_STEP)


def _cut(tensor: Tensor, length: int, whole: int) -> Tensor:
    """A tensor without what belongs to the filling."""
    return tensor[:, :length] if tensor.ndim > 1 and tensor.shape[1] == whole else tensor
