"""TRN304 gradient-zero

Detects: a gradient norm that is zero, or has sunk to nothing, step after step, while there is still much to learn.
Matters: no step changes a weight; the run goes on as if it trained.
Fix: look whether gradients are cleared between backward and step, and whether the loss is cut off from the weights.

Example:
    # faulty
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    # correct
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

from collections.abc import Iterator
from typing import Any

from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import Series, levels, median
from nsa_doctor.checks._shared.normed import norms_and_losses
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.testing.training_runs import trained

_FEWEST = 10
_NOTHING = 1e-9  # float32's rounding of a norm of one is a hundred times as much
_SUNK = 1e-5
_LEARNT = 0.05  # nats: a loss that is nearly zero has a gradient that is
_SHARE_LEARNT = 0.5
_ROUNDED = 0.1


def run(subject: RunSubject) -> Iterator[Finding | Note]:
    norms, losses = norms_and_losses(subject.record, fewest=_FEWEST)
    gone = _gone(norms)
    if gone is None:
        return
    inside = losses.within(gone.steps[0], gone.steps[-1])
    if _is_learnt(losses, inside):
        return
    if _falls(inside) and not _was_measured(norms, gone):
        yield Note(
            message=f"the gradient norm is logged as {gone.values[0]:.3g} ({gone.steps_text}), and the loss falls"
        )
        return
    yield Finding(
        message=f"the gradient norm is {max(gone.values):.3g} at every one of {gone.steps_text}",
        evidence={"run": subject.name, "step": gone.steps[0], "steps": gone.span, "norm": max(gone.values)},
        repro=subject.reproduce,
    )


def _gone(norms: Series) -> Series | None:
    """The longest stretch of norms that are zero or nearly, of ten at least."""
    limit = max(_NOTHING, _SUNK * median(norms.values[: max(_FEWEST, len(norms) // 12)]))
    first, best = 0, norms.part(0, 0)
    for index in range(len(norms) + 1):
        if index == len(norms) or norms.values[index] > limit:
            best = max(best, norms.part(first, index), key=len)
            first = index + 1
    return best if len(best) >= _FEWEST else None


def _is_learnt(losses: Series, inside: Series) -> bool:
    if not inside:
        return False
    now, first = median(inside.values), losses.values[0]
    return 0 < now < _LEARNT or (inside.steps[0] > losses.steps[0] and 0 < now < _SHARE_LEARNT * _LEARNT * first)


def _was_measured(norms: Series, gone: Series) -> bool:
    """Whether the norms before were none that a few digits round to zero."""
    before = norms.within(norms.steps[0], gone.steps[0] - 1)
    return len(before) >= _FEWEST and median(before.values) > _ROUNDED


def _falls(inside: Series) -> bool:
    if len(inside) < _FEWEST:
        return False
    found = levels(inside, 4, fewest=2)
    return found.values[0] - found.values[-1] > 6 * found.error


def planted(subject: RunSubject) -> RunSubject:
    from nsa.train.loop import Loop

    backward = Loop._backward

    def cleared(loop: Any, *arguments: Any) -> Any:
        sums = backward(loop, *arguments)
        loop.machinery.optimizer.zero_grad(set_to_none=False)
        return sums

    return trained(steps=40, eval_every=0, seams={"nsa.train.loop.Loop._backward": cleared})


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="run",
    profile="smoke",
    explained_by=("TRN201", "TRN204"),
    priority=828,
)
