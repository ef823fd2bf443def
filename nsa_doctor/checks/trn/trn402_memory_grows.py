"""TRN402 memory-grows

Detects: memory that grows with the steps until the end, after what an allocator takes at first. Report 003 read "69 to
    170 MB, linear with steps" as expected: it is not.
Matters: the run ends when the memory does, hours or days from now.
Fix: look for what is kept from step to step: losses with their graph, activations in a list, a cache that is never cut.

Example:
    # faulty
    losses.append(loss)  # and with it the graph of its step
    # correct
    losses.append(loss.item())
"""

import itertools
import mmap
from collections.abc import Iterator
from typing import Any

from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import Series, levels, series, timeline
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import short_bytes
from nsa_doctor.testing.training_runs import trained

_FEWEST, _MANY = 12, 30
_STRETCHES = 6
_LEFT_OUT = 0.1  # of the points, at the start
_ERRORS = 6.0
_LEAST, _LEAST_OF_FEW = 0.012, 0.10  # in the second half; what a settled process takes is a third of this
_LEAST_BYTES = 1 << 20
_PACE = 0.4  # of the pace before, that the last stretches keep: what settles slows down


def run(subject: RunSubject) -> Iterator[Finding]:
    memory = series(timeline(subject.record), "memory")
    if not memory:
        raise NotApplicableError("the run logs no memory")
    memory = memory.part(int(len(memory) * _LEFT_OUT))
    if len(memory) < _FEWEST:
        raise NotApplicableError(f"the memory is logged {len(memory)} times after the start; {_FEWEST} are needed")
    if not _grows(memory):
        return
    found = levels(memory, _STRETCHES, fewest=2)
    middles = [(stretch.steps[0] + stretch.steps[-1]) / 2 for stretch in found.stretches]
    pace = (found.values[-1] - found.values[0]) / (middles[-1] - middles[0])
    yield Finding(
        message=(
            f"memory grows from {short_bytes(int(memory.values[0]))} at step {memory.steps[0]} to "
            f"{short_bytes(int(memory.values[-1]))} at step {memory.steps[-1]}, by {short_bytes(int(pace))} a step"
        ),
        evidence={"run": subject.name, "bytes_per_step": pace, "first": memory.values[0], "last": memory.values[-1]},
        repro=subject.reproduce,
    )


def _grows(memory: Series) -> bool:
    """Whether every stretch is above the one before, and the last ones by as much as the first."""
    found = levels(memory, _STRETCHES, fewest=2)
    values = found.values
    gains = [after - before for before, after in itertools.pairwise(values)]
    late, early = sum(gains[-3:]), sum(gains[:-3])
    least = (_LEAST if len(memory) >= _MANY else _LEAST_OF_FEW) * values[-4]
    is_enough = late >= max(least, _ERRORS * found.error, _LEAST_BYTES)
    is_steady = min(gains[-3:]) > 0 and gains[-1] >= _PACE * late / 3 and late / 3 >= _PACE * max(early, 0.0) / 2
    return is_enough and is_steady


def planted(subject: RunSubject) -> RunSubject:
    import torch
    from torch.nn.functional import cross_entropy

    from nsa.train.memory import memory_in_use

    kept: list[mmap.mmap] = []
    resident = memory_in_use(torch.device("cpu")) or 0

    def remembers(logits: Any, targets: Any, **options: Any) -> Any:
        # The system's own pages: a tensor may come from what this process has freed before.
        pages = mmap.mmap(-1, max(4 * _LEAST_BYTES, resident // 200))
        pages.write(bytes([1]) * len(pages))
        kept.append(pages)
        return cross_entropy(logits, targets, **options)

    return trained(steps=60, eval_batches=0, eval_every=0, seams={"nsa.train.objective.cross_entropy": remembers})


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=870)
