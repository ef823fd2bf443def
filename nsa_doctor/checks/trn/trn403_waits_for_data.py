"""TRN403 waits-for-data

Detects: a run whose typical step spends more than half of its time waiting for a batch.
Matters: the device is paid for and idle; the model is no reason for how slow the run is.
Fix: read ahead, tokenize before and not during the run, or give the loader more workers or a faster disk.

Example:
    # faulty
    loader = DataLoader(rows, batch_size=8)  # tokenizes between two steps
    # correct
    loader = DataLoader(rows, batch_size=8, num_workers=4, prefetch_factor=4)
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from nsa_doctor.artifacts.training_run.declared import Declared, declared
from nsa_doctor.artifacts.training_run.record import Beat
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import median, timeline
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.training_runs import trained

_FEWEST = 20
_LEFT_OUT = 3  # steps at the start: the first batch of a stream takes its time
_MOST = 0.5
_LEAST_SECONDS = 0.005  # of one wait: less is a thread that was woken late


def run(subject: RunSubject) -> Iterator[Finding]:
    beats = timeline(subject.record)[_LEFT_OUT:]
    pairs = list(_waits(beats, declared(subject.record)))
    if len(pairs) < _FEWEST:
        raise NotApplicableError(f"the run logs the wait of {len(pairs)} steps; {_FEWEST} are needed")
    share = median(wait / whole for wait, whole in pairs)
    wait, whole = median(wait for wait, _ in pairs), median(whole for _, whole in pairs)
    if share > _MOST and wait >= _LEAST_SECONDS:
        yield Finding(
            message=f"of a step of {whole:.3g} s, {wait:.3g} s go by in waiting for its batch ({100 * share:.0f} %)",
            evidence={"run": subject.name, "share": share, "wait_seconds": wait, "step_seconds": whole},
            repro=subject.reproduce,
        )


def _waits(beats: Sequence[Beat], settings: Declared) -> Iterator[tuple[float, float]]:
    """Seconds of the wait and of the whole step, by the tokens of a step and their pace, else by the clock."""
    for before, beat in itertools.pairwise(beats):
        wait = beat.fetch_seconds
        if wait is None or not wait >= 0:
            continue
        if settings.is_own and settings.tokens_per_step and beat.tokens_per_second:
            whole = settings.tokens_per_step / beat.tokens_per_second
        elif before.ts is not None and beat.ts is not None and before.step is not None and beat.step is not None:
            whole = (beat.ts - before.ts) / max(1, beat.step - before.step)
        else:
            continue
        if whole > 0 and wait <= 1.05 * whole:
            yield wait, whole


def planted(subject: RunSubject) -> RunSubject:
    from nsa.train.feed import Feed

    step = Feed.step

    def slow(feed: Any) -> Any:
        time.sleep(0.25)
        return step(feed)

    return trained(steps=28, eval_batches=0, eval_every=0, seams={"nsa.train.feed.Feed.step": slow})


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=872)
