"""TRN303 gradient-explodes

Detects: a gradient norm that grows orders of magnitude above its own level and stays there.
Matters: clipping hides it: every step then has the same length whatever the batch says, and the loss soon follows.
Fix: go back to a checkpoint before it grows; look for weights that grow with it, a rate too high, a norm left out.

Example:
    # faulty
    x = x + attention(x)  # activations and gradients grow with every layer
    # correct
    x = x + attention(norm(x))
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

from nsa_doctor.artifacts.training_run.growing import Growth, grown, spike
from nsa_doctor.artifacts.training_run.rising import found_rise
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import Series, levels
from nsa_doctor.checks._shared.normed import norms_and_losses
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.testing.training_runs import trained

_FEWEST = 20
# A model that leaves a plateau, or begins with outputs of zero, has gradients up to a hundred times what they were, and
# its loss falls by them. A thousand times is more than any that learns; less counts when the loss does not fall.
_WHATEVER_THE_LOSS, _WITHOUT_A_FALL, _WITH_A_RISE = 1000.0, 100.0, 20.0


def run(subject: RunSubject) -> Iterator[Finding | Note]:
    norms, losses = norms_and_losses(subject.record, fewest=_FEWEST)
    growth = grown(norms)
    if growth is not None and growth.ratio >= _least(losses, growth):
        yield Finding(
            message=(
                f"the gradient norm grows from {growth.before:.3g} ({growth.calm.steps_text}) to {growth.after:.3g} "
                f"({growth.wild.steps_text}) and stays there"
            ),
            evidence={"run": subject.name, "step": growth.wild.steps[0], "ratio": growth.ratio, "norm": growth.after},
            repro=subject.reproduce,
        )
    elif (alone := spike(norms)) is not None:
        yield Note(
            message=f"the gradient norm of step {alone[0]} is {alone[1]:.3g}, {alone[2]:.0f} times what it is about it"
        )


def _least(losses: Series, growth: Growth) -> float:
    """How many times the norm may have grown, by what the loss does meanwhile."""
    rise = found_rise(losses) if len(losses) >= _FEWEST else None
    if rise is not None and not rise.is_recovering:
        return _WITH_A_RISE
    before, after = losses.within(0, growth.wild.steps[0] - 1), losses.within(growth.wild.steps[0])
    size = min(len(before), len(after))
    if size < _FEWEST // 2:
        return _WHATEVER_THE_LOSS
    found = levels(losses.part(len(before) - size, len(before) + size), 4)
    is_falling = found.values[0] - found.values[-1] > 3 * found.error
    return _WHATEVER_THE_LOSS if is_falling else _WITHOUT_A_FALL


def planted(subject: RunSubject) -> RunSubject:
    from nsa.train.objective import Objective

    calls, forward = count(1), Objective.forward

    def scaled_again(module: Any, *inputs: Any) -> Any:
        """A loss scale that is raised every step, and never taken out of the gradients."""
        loss = forward(module, *inputs)
        scale = 2.0 ** min(next(calls), 40)
        return loss + (scale - 1) * (loss - loss.detach()) if module.training else loss

    return trained(steps=60, eval_every=0, seams={"nsa.train.objective.Objective.forward": scaled_again})


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="run",
    profile="smoke",
    explained_by=("TRN201", "TRN203", "TRN302"),
    priority=832,
)
