"""TRN401 throughput-decays

Detects: steps that take longer and longer, from the first to the last of the run; pauses and busy neighbours apart.
Matters: something grows with every step, and a run planned by its first hour takes many times as long.
Fix: look for what is kept from step to step: a list, a graph, a cache, a log that is read again.

Example:
    # faulty
    losses.append(loss.item())
    smooth = statistics.fmean(losses)  # of all steps, at every step
    # correct
    smooth = 0.99 * smooth + 0.01 * loss.item()
"""

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

from nsa_doctor.artifacts.training_run.slowing import Slowing, costs, slowing
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import timeline
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.training_runs import trained

_FEWEST = 32


def run(subject: RunSubject) -> Iterator[Finding]:
    found = costs(timeline(subject.record))
    if len(found.costs) < _FEWEST:
        raise NotApplicableError(
            f"the pace of {len(found.costs)} steps is logged, the first few left out; {_FEWEST} are needed"
        )
    slow = slowing(found)
    if slow is not None:
        yield Finding(
            message=_message(slow),
            evidence={"run": subject.name, "ratio": slow.after / slow.before, "unit": found.unit},
            repro=subject.reproduce,
        )


def _message(slow: Slowing) -> str:
    how = "ever longer" if slow.is_steady else "from one step on"
    return (
        f"steps take {slow.after / slow.before:.2g} times as long at the end ({slow.late.steps_text}: "
        f"{1 / slow.after:.4g} {slow.unit} a second) as at the start ({slow.early.steps_text}: "
        f"{1 / slow.before:.4g}), {how}"
    )


def planted(subject: RunSubject) -> RunSubject:
    from torch.nn.functional import cross_entropy

    clock = _Clock()
    calls = count(1)

    def reads_all_it_kept(logits: Any, targets: Any, **options: Any) -> Any:
        clock.ahead += 1e-2 * next(calls) ** 2
        return cross_entropy(logits, targets, **options)

    seams = {"nsa.train.objective.cross_entropy": reads_all_it_kept, "nsa.train.loop.time": clock}
    return trained(steps=40, eval_batches=0, eval_every=0, seams=seams)


class _Clock:
    """In place of `time`: what takes long is added to it, so that nobody has to wait."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def perf_counter(self) -> float:
        return time.perf_counter() + self.ahead


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="run",
    profile="smoke",
    explained_by=("TRN402", "TRN403"),
    priority=874,
)
