"""What the learning rate of a run should have been at each step, by its own configuration, and where it was another."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from nsa_doctor.artifacts.training_run.declared import Declared
from nsa_doctor.artifacts.training_run.trends import Series

_SAME = 1e-3  # of the rate: logs tell three digits
_JUMP = 1.5
_GLITCH = 3.0
_FALLEN = 0.7  # of the peak, from which a rise is none of a warm-up
_RESTARTS = ("restart", "cyc", "triang", "sgdr")


@dataclass(frozen=True)
class Stray:
    """A rate at a step, and what is wrong with it."""

    step: int
    rate: float
    what: str


def due(step: int, settings: Declared) -> float:
    """The rate of one of nsa's own runs: linear warm-up, then a cosine or a constant (as `nsa.train.schedule`)."""
    assert settings.lr is not None
    lr, floor, warmup, steps = settings.lr, settings.floor or 0.0, settings.warmup or 0.0, settings.steps or 1.0
    if step < warmup:
        return lr * step / warmup
    peak = max(warmup, 1.0)
    if settings.shape == "constant" or step <= peak:
        return lr
    progress = min((step - peak) / (steps - peak), 1.0) if steps > peak else 1.0
    return floor + (lr - floor) * (1 + math.cos(math.pi * progress)) / 2


def strays_from_own(rates: Series, settings: Declared) -> Iterator[Stray]:
    """Steps whose rate is not the one due."""
    for step, rate in zip(rates.steps, rates.values, strict=True):
        wanted = due(step, settings)
        if not abs(rate - wanted) <= _SAME * wanted + 1e-12:
            yield Stray(step, rate, f"and not {wanted:.4g}")


def strays(rates: Series, settings: Declared) -> Iterator[Stray]:
    """Steps whose rate no schedule has, or not the kind that is declared."""
    steps, values = rates.steps, rates.values
    yield from (Stray(step, rate, "below zero") for step, rate in zip(steps, values, strict=True) if rate < 0)
    for index in range(1, len(values) - 1):
        before, rate, after = values[index - 1 : index + 2]
        if min(before, after) <= 0 or max(before, after) > 1.1 * min(before, after):
            continue
        if rate > _GLITCH * before or 0 <= rate < before / _GLITCH:
            yield Stray(steps[index], rate, f"between {before:.4g} and {after:.4g}")
    if not settings.shape or any(word in settings.shape for word in _RESTARTS):
        return
    peak = 0.0
    for index in range(1, len(values)):
        peak = max(peak, values[index - 1])
        before, rate = values[index - 1], values[index]
        if 0 <= before < _FALLEN * peak and rate > _JUMP * before and rate > 0.1 * peak:
            yield Stray(steps[index], rate, f"after {before:.4g}: it restarts, and {settings.shape} does not")
    if settings.shape == "constant" and settings.warmup is not None and settings.lr:
        late = [(step, rate) for step, rate in zip(steps, values, strict=True) if step > settings.warmup + 1]
        for step, rate in late:
            if abs(rate - late[0][1]) > 0.05 * abs(late[0][1]):
                yield Stray(step, rate, f"and not {late[0][1]:.4g}, which a constant rate would be")
