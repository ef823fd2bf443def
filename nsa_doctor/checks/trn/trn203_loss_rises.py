"""TRN203 loss-rises

Detects: a loss that lies far above what it had reached, beyond the noise of its steps, and does not come back.
Matters: every step makes the model worse: the update has the wrong sign, the rate is too high, or the data changed.
Fix: go back to the last checkpoint before it rises; halve the rate; look at the sign of the loss and of the update.

Example:
    # faulty
    optimizer = AdamW(model.parameters(), lr=3e-2)
    # correct
    optimizer = AdamW(model.parameters(), lr=3e-4)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 1000))  # warm-up
"""

from collections.abc import Iterator
from typing import Any

from nsa_doctor.artifacts.training_run.declared import declared
from nsa_doctor.artifacts.training_run.rising import found_rise
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import Series, series, timeline, travelled
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.testing.training_runs import trained

_FEWEST_POINTS, _FEWEST_STEPS = 12, 20
# With weights of about 0.02, rates that add up to less than this move them by less than a twentieth (Adam moves a
# weight by about the rate a step): no loss can be seen to rise or fall by them. Report 001 read 5 steps so.
_LEAST_TRAVEL = 1e-3


def run(subject: RunSubject) -> Iterator[Finding | Note]:
    beats = timeline(subject.record)
    losses = series(beats, "loss")
    if not losses:
        raise NotComparableError("the run logs no finite loss")
    _require_enough(losses, travelled(beats))
    rise = found_rise(losses, declared(subject.record).guess)
    if rise is None:
        return
    if rise.is_recovering:
        yield Note(message=f"{rise.sentence}, and is on its way back")
        return
    yield Finding(
        message=rise.sentence,
        evidence={
            "run": subject.name,
            "step": rise.best.steps[-1],
            "best": rise.lowest,
            "last": rise.now,
            "noise": rise.noise,
        },
        control=f"one step strays by {rise.noise:.2g}",
        repro=subject.reproduce,
    )


def _require_enough(losses: Series, travel: float | None) -> None:
    change = f"the loss goes from {losses.values[0]:.4f} to {losses.values[-1]:.4f} over {losses.span} steps"
    if travel is not None and travel < _LEAST_TRAVEL:
        raise NotApplicableError(
            f"{change}, whose rates add up to {travel:.1e} and move hardly a weight: nothing follows from it"
        )
    if len(losses) < _FEWEST_POINTS or losses.span < _FEWEST_STEPS:
        raise NotApplicableError(
            f"{change}, logged {len(losses)} times; {_FEWEST_STEPS} steps and {_FEWEST_POINTS} losses are needed"
        )


def planted(subject: RunSubject) -> RunSubject:
    from torch.optim import AdamW

    class Climbs(AdamW):
        def step(self, closure: Any = None) -> Any:
            self._turn()
            answer = super().step(closure)
            self._turn()
            return answer

        def _turn(self) -> None:
            for group in self.param_groups:
                group["lr"] *= -1

    return trained(steps=40, eval_every=0, lr=5e-3, seams={"nsa.train.optimizer.AdamW": Climbs})


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="run",
    profile="smoke",
    explained_by=("TRN201", "TRN302"),
    priority=830,
)
