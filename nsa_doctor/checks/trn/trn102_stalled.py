"""TRN102 stalled

Detects: a step, a batch or a save that stood still: by the watchdog's stacks, by the run's word, or by a gap of time.
Matters: a run that waits for data or hangs in one call holds its GPUs and learns nothing.
Fix: go to the line that held it up; of a loader look at the file or shard it was reading.

Example:
    # faulty
    shard = urlopen(url).read()  # a server that does not answer holds up the step
    # correct
    shard = urlopen(url, timeout=30).read()  # and is asked again
"""

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

from nsa_doctor.artifacts.training_run.stalls import standstills
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.testing.training_runs import trained

_MOST_FINDINGS = 2
_FAULTY_AT = 100  # rows
_SECONDS = 3.0


def run(subject: RunSubject) -> Iterator[Finding]:
    record = subject.record
    found = standstills(record)
    if not found and record.clock == "none":
        raise NotApplicableError("the log has no time, so that a standstill cannot be seen")
    stages = {each.stage: each for each in reversed(found)}
    for each in sorted(stages.values(), key=lambda each: each.line is None)[:_MOST_FINDINGS]:
        alike = [other for other in found if other.stage == each.stage]
        seconds = max((other.seconds for other in alike if other.seconds is not None), default=None)
        time = "too long" if seconds is None else f"{seconds:.1f} s"
        at = f" at {each.source}" if each.source else ""
        where = f", in {each.line.function} ({each.line.file}:{each.line.line})" if each.line else ""
        times = f", and so did {len(alike) - 1} more" if len(alike) > 1 else ""
        silent = each.silent_watchdog
        unreported = "" if silent is None else f", and the watchdog, set to {silent:g} s, said nothing"
        yield Finding(
            message=f"{each.stage}{at} of step {each.step} took {time}{where}{times}{unreported}",
            where=Place(file=each.line.file, line=each.line.line, function=each.line.function)
            if each.line
            else Place(),
            evidence={
                "run": subject.name,
                "stage": each.stage,
                "step": each.step,
                "seconds": seconds,
                "rank": each.rank,
                "dump": each.dump,
                "silent_watchdog": silent,
            },
            repro=subject.reproduce,
        )


def planted(subject: RunSubject) -> RunSubject:
    from nsa.data.synthetic import synthetic_row

    rows, never = count(), threading.Event()

    def hangs(*of_row: Any, **named: Any) -> Any:
        if next(rows) == _FAULTY_AT:
            never.wait(_SECONDS)
        return synthetic_row(*of_row, **named)

    seams = {"nsa.data.sources.synthetic_row": hangs}
    return trained(seams=seams, steps=20, watchdog_seconds=_SECONDS / 3, eval_every=0, save_every=0, eval_batches=1)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=810)
