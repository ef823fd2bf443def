"""How long a sequence a foreign module can be examined at: what it declares to serve, and what takes too long."""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from torch import nn

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.measurement import Point
from nsa_doctor.probes.model.perform import Conditions, perform
from nsa_doctor.subject.contract import Subject

_LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_SECONDS = 0.15


def within_limits(
    subject: Subject, module: nn.Module, asking: Callable[[int], None], avoid: Collection[int]
) -> Subject:
    """The subject with the `max_length` its module serves, tried without gradients at growing lengths.

    A length at which it raises is the module's own limit when a size in it says so (a table of positions, a mask);
    otherwise it stays within what is examined, and is a finding there. `asking` gets each length before it is tried.
    """
    works = 1
    for length in _LENGTHS:
        if length in avoid:
            continue
        asking(length)
        seconds = _seconds(subject, module, length)
        if seconds is not None and seconds > _SECONDS:  # the first call may have compiled or loaded something
            seconds = _seconds(subject, module, length)
        if seconds is None:
            limit = _limit(subject, module, works, length, asking)
            if limit is None:
                return replace(subject, max_length=max(length, works))
            note = f"examined up to S={limit}, the longest the subject serves"
            return replace(subject, max_length=limit, notes=(*subject.notes, note))
        works = length
        if seconds > _SECONDS and length < _LENGTHS[-1]:
            note = f"examined up to S={length}: longer calls take too long for this examination"
            return replace(subject, max_length=length, notes=(*subject.notes, note))
    return replace(subject, max_length=works)


def _limit(subject: Subject, module: nn.Module, works: int, fails: int, asking: Callable[[int], None]) -> int | None:
    """The longest length that works, where the module declares it; None when it fails for another reason."""
    too_long = fails
    while works + 1 < too_long:
        middle = (works + too_long) // 2
        asking(middle)
        works, too_long = (middle, too_long) if _seconds(subject, module, middle) is not None else (works, middle)
    always = all(_seconds(subject, module, length) is None for length in (works + 1, works + 2, works + 3, 2 * works))
    return works if always and works in _sizes(module) else None


def _seconds(subject: Subject, module: nn.Module, length: int) -> float | None:
    """How long a forward pass takes; None when it raises."""
    asked = replace(subject, build=lambda _seed: module)
    mode = "no_grad" if "no_grad" in subject.modes else subject.modes[0]
    conditions = Conditions(device=subject.device, forward_only=True, measures_memory=False)
    start = time.perf_counter()
    try:
        perform(asked, Point(length=length, dtype=subject.dtype, mode=mode), conditions)
    except SubjectFailedError:
        return None
    return time.perf_counter() - start


def _sizes(module: nn.Module) -> set[int]:
    """Every size a module holds: of its parameters and buffers, and whole numbers among its attributes."""
    found: set[int] = set()
    for part in module.modules():
        tensors = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        found |= {size for tensor in tensors for size in tensor.shape}
        holders: list[Any] = [part, *(getattr(part, name, None) for name in ("config", "cfg", "args"))]
        for holder in holders:
            values = holder.values() if isinstance(holder, dict) else getattr(holder, "__dict__", {}).values()
            found |= {value for value in values if type(value) is int}
            found |= {size for value in values for size in getattr(value, "shape", ()) if type(size) is int}
    return found
