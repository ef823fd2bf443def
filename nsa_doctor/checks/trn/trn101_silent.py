"""TRN101 silent

Detects: a run that does not say it has ended, and whose last heartbeat is older than its own pace allows.
Matters: the process is gone or hangs where its watchdog does not run, and the GPUs are paid for.
Fix: see whether the process lives (kill -USR1 PID writes its stacks), then go on with --resume auto.

Example:
    # faulty
    batch = batches.get()  # a worker that died never puts one: no step, no heartbeat, no end
    # correct
    batch = batches.get(timeout=600)  # raises queue.Empty, and the run says how it ended
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.training_run.heartbeat_gaps import longest_silence_allowed
from nsa_doctor.artifacts.training_run.numbers import is_time
from nsa_doctor.artifacts.training_run.sessions import is_over, sessions_of
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.training_runs import trained

_A_DAY = 86_400.0


def run(subject: RunSubject) -> Iterator[Finding]:
    record = subject.record
    if not record.beats:
        raise NotApplicableError("the run has no heartbeat yet")
    if is_over(record):
        return
    if record.clock != "absolute":
        raise NotApplicableError("the log has no time of day, so that its silence cannot be seen")
    if not record.is_own and not record.source.startswith("heartbeat") and record.declared("max_steps") is None:
        raise NotApplicableError("the log does not say how a run ends, nor how many steps it was to make")
    last = max((beat for beat in record.beats if is_time(beat.ts)), key=lambda beat: beat.ts or 0.0)
    if last.msg.startswith("stalled") or last.ts is None:
        return  # reported by TRN102
    seconds = subject.now - last.ts
    limit = longest_silence_allowed(record, sessions_of(record, last.rank))
    if not seconds <= limit:
        step = max((beat.step for beat in record.beats if beat.step is not None), default=0)
        yield Finding(
            message=f"no heartbeat for {_duration(seconds)} after step {step}, and no word of an end "
            f"(more than {_duration(limit)} is too long for this run)",
            evidence={
                "run": subject.name,
                "step": step,
                "rank": last.rank,
                "pid": last.pid,
                "seconds": round(seconds, 1),
                "limit_seconds": round(limit, 1),
            },
            repro=subject.reproduce,
        )


def planted(subject: RunSubject) -> RunSubject:
    from nsa.train import TrainError

    def dies(*_: object) -> None:
        raise TrainError

    def without_a_word(*_: object) -> None:
        return None

    seams = {"nsa.train.loop.Loop._after": dies, "nsa.train.run._try_to_tell": without_a_word}
    return trained(seams=seams, steps=20, save_every=0, seconds_later=_A_DAY)


def _duration(seconds: float) -> str:
    for size, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=810)
