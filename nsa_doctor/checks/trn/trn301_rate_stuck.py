"""TRN301 rate-stuck

Detects: a learning rate that stands still at nothing, or far below what its schedule asks for, step after step.
Matters: the run costs what it costs and learns nothing. The first steps of a long warm-up look the same and are not
    judged: 1e-07 is the first of 2,000 steps to 2e-04 (report 001).
Fix: look whether the schedule is stepped, and whether its floor is a share of the rate or a rate.

Example:
    # faulty
    schedule = LambdaLR(optimizer, lambda step: min(1.0, step / 1000))
    optimizer.step()  # the schedule is never stepped: the rate stays 0
    # correct
    schedule = LambdaLR(optimizer, lambda step: min(1.0, step / 1000))
    optimizer.step()
    schedule.step()
"""

from collections.abc import Iterator
from typing import Any

from nsa_doctor.artifacts.training_run.declared import Declared, declared
from nsa_doctor.artifacts.training_run.schedules import due
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import Series, levels, series, timeline
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.training_runs import trained

_FEWEST = 10
_FAR = 3.0
_SHARE = 0.05  # of a run: a few steps at nothing may follow the end of a cosine
_PEAK_SHARE = 0.1
_NOTHING, _NEXT_TO_NOTHING = 1e-9, 2e-7  # fine-tuning with preferences goes down to 5e-07
_UNTRAINED = 4.0


def run(subject: RunSubject) -> Iterator[Finding]:
    beats = timeline(subject.record)
    rates, losses = series(beats, "learning_rate"), series(beats, "loss")
    if not rates:
        raise NotApplicableError("the run logs no learning rate")
    if len(rates) < _FEWEST:
        raise NotApplicableError(f"the rate is logged {len(rates)} times; {_FEWEST} are needed")
    settings, still = declared(subject.record), _still(rates)
    if len(still) < max(_FEWEST, _SHARE * len(rates)):
        return
    wanted = _wanted(rates, still, losses, settings, is_own=settings.is_own and subject.record.is_own)
    if wanted:
        yield Finding(
            message=f"the learning rate stands at {still.values[0]:.3g} ({still.steps_text}){wanted}",
            evidence={"run": subject.name, "rate": still.values[0], "steps": still.span},
            repro=subject.reproduce,
        )


def _still(rates: Series) -> Series:
    """The longest stretch of one rate."""
    first, best = 0, (0, 0)
    for index in range(len(rates) + 1):
        if index == len(rates) or rates.values[index] != rates.values[first]:
            best = max(best, (index - first, -first))
            first = index
    return rates.part(-best[1], best[0] - best[1])


def _wanted(rates: Series, still: Series, losses: Series, settings: Declared, *, is_own: bool) -> str:
    """What there should be in its place; empty where the rate may stand."""
    rate = still.values[0]
    if is_own:
        step = max(still.steps, key=lambda each: due(each, settings))
        wanted = due(step, settings)
        return f", where the schedule has {wanted:.3g} at step {step}" if rate * _FAR < wanted else ""
    is_all = len(still) == len(rates)
    if 0 <= rate <= _NOTHING:
        is_rounded = not is_all and len({value for value in rates.values if value}) < _FEWEST
        return "" if is_rounded or _falls(losses, still) else ", and no step at such a rate learns anything"
    is_past_warmup = still.steps[-1] > (settings.warmup or 0) or len(still) >= 2 * _FEWEST
    if is_all and settings.lr and rate <= _PEAK_SHARE * settings.lr and is_past_warmup and rate != settings.floor:
        return f", and never comes near the {settings.lr:.3g} that is declared"
    is_untrained = bool(losses) and losses.values[0] > _UNTRAINED
    is_slow = is_all and rate <= _NEXT_TO_NOTHING and still.span >= 5 * _FEWEST
    return ", at which no model learns from nothing" if is_slow and is_untrained and not _falls(losses, still) else ""


def _falls(losses: Series, still: Series) -> bool:
    """Whether the loss falls all the same, so that the rate is a rounded one."""
    inside = losses.within(still.steps[0])
    if len(inside) < 2 * _FEWEST:
        return False
    found = levels(inside, 4)
    return found.values[0] - found.values[-1] > 6 * found.error


def planted(subject: RunSubject) -> RunSubject:
    from nsa.train.schedule import learning_rate

    def never_counts(step: int, train: Any) -> float:
        return learning_rate(1, train)

    return trained(steps=40, eval_every=0, warmup_steps=20, seams={"nsa.train.loop.learning_rate": never_counts})


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=822)
