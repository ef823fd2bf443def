"""TRN302 rate-off-schedule

Detects: a learning rate that is not the one its schedule gives for the step: another warm-up, another pace, a restart
    that nothing declares, a rate below zero.
Matters: too high a rate undoes what was learnt, too low a one learns nothing, and neither shows at once.
Fix: step the schedule once for each optimizer step, and save and restore it with the optimizer.

Example:
    # faulty
    for part in batch.chunk(4):
        (loss_of(part) / 4).backward()
        schedule.step()  # four times for one step of the optimizer
    optimizer.step()
    # correct
    for part in batch.chunk(4):
        (loss_of(part) / 4).backward()
    optimizer.step()
    schedule.step()
"""

from collections.abc import Iterator
from typing import Any

from nsa_doctor.artifacts.training_run.declared import declared
from nsa_doctor.artifacts.training_run.schedules import strays, strays_from_own
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import series, timeline
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.training_runs import trained


def run(subject: RunSubject) -> Iterator[Finding]:
    rates = series(timeline(subject.record), "learning_rate")
    if not rates:
        raise NotApplicableError("the run logs no learning rate")
    settings = declared(subject.record)
    found = list(
        strays_from_own(rates, settings) if settings.is_own and subject.record.is_own else strays(rates, settings)
    )
    if not found:
        return
    first = min(found, key=lambda stray: stray.step)
    others = len({stray.step for stray in found}) - 1
    more = f"; {others} more of {len(rates)} steps are off" if others else ""
    yield Finding(
        message=f"the learning rate of step {first.step} is {first.rate:.4g} {first.what}{more}",
        evidence={"run": subject.name, "step": first.step, "rate": first.rate, "steps": others + 1},
        repro=subject.reproduce,
    )


def planted(subject: RunSubject) -> RunSubject:
    from nsa.train.schedule import learning_rate

    def stepped_every_other_time(step: int, train: Any) -> float:
        return learning_rate((step + 1) // 2, train)

    return trained(steps=30, eval_every=0, seams={"nsa.train.loop.learning_rate": stepped_every_other_time})


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", explained_by=("TRN301",), priority=824
)
