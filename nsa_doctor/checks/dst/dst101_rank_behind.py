"""DST101 rank-behind

Detects: a process several steps behind the others, or one that the run counts and that left no heartbeat.
Matters: the others wait for it at every exchange, until they give up and the run ends.
Fix: look at that process: its stacks (kill -USR1 PID), its GPU, its share of the data.

Example:
    # faulty
    if rank == 0:
        evaluate(model, held_out)  # the others go on without it
    # correct
    evaluate(model, held_out[rank::world_size])
"""

from collections.abc import Iterator
from pathlib import Path

from nsa_doctor.artifacts.training_run.rank_consistency import behind
from nsa_doctor.artifacts.training_run.sessions import endings
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.ranks import trained_by_two

_LEFT = 9


def run(subject: RunSubject) -> Iterator[Finding]:
    record = subject.record
    if record.world_size < 2:
        raise NotApplicableError("the run has one process")
    if len(record.ranks) < 2 and not record.is_own:
        raise NotApplicableError("the log is of one process alone")
    if any(end.kind in ("another rank", "error", "ranks differ", "stalled") for end in endings(record)):
        return  # whoever ended it is named by other checks
    found = behind(record)
    if found:
        first, more = found[0], f", and {len(found) - 1} more ranks like it" if len(found) > 1 else ""
        late = f", {first.seconds:.1f} s" if first.seconds is not None and first.seconds > 0 else ""
        is_missing = first.step is None
        symptom = (
            "left no heartbeat" if is_missing else f"is {first.others_step - (first.step or 0)} steps{late} behind"
        )
        yield Finding(
            message=f"rank {first.rank} {symptom} at step {first.others_step} of the others{more}",
            evidence={
                "run": subject.name,
                "rank": first.rank,
                "step": first.step,
                "others_step": first.others_step,
                "seconds": first.seconds,
                "ranks": record.world_size,
            },
            repro=subject.reproduce,
        )


def planted(subject: RunSubject) -> RunSubject:
    def stops_early(folder: Path) -> None:
        path = folder / "heartbeat_rank1.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:_LEFT]))

    return trained_by_two(spoil=stops_early)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke")
