"""TRN104 checkpoints-missed

Detects: a run that went on past a step at which it was to save, or whose last checkpoint is gone or empty.
Matters: nothing is lost only when something is saved; the next crash costs all steps since the last good one.
Fix: look for room and rights in the folder of the checkpoints, and save by hand before the run goes on.

Example:
    # faulty
    if step % save_every == 0:
        Thread(target=save, args=(path,)).start()  # a full disk is an exception that nobody sees
    # correct
    if step % save_every == 0:
        save(path)
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from nsa_doctor.artifacts.training_run.saved_checkpoints import logged_saves, losses
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import numbers
from nsa_doctor.testing.training_runs import trained


def run(subject: RunSubject) -> Iterator[Finding]:
    record = subject.record
    found = losses(record)
    if not found and not record.saved and not logged_saves(record):
        raise NotApplicableError("the run has saved nothing yet, and was not to have")
    whats = dict.fromkeys(each.what for each in found)
    parts = []
    for what in whats:
        steps = sorted({each.step for each in found if each.what == what and each.step is not None})
        at = f" of step {numbers(steps)}" if steps else ""
        parts.append(f"the checkpoint{at} {what}")
    if found:
        last = max((beat.step for beat in record.steps if beat.step is not None), default=0)
        yield Finding(
            message=f"{'; '.join(parts)}; the run came to step {last}",
            evidence={
                "run": subject.name,
                "checkpoints": len(found),
                "first_step": found[0].step,
                "save_every": record.declared("save_every"),
            },
            repro=subject.reproduce,
        )


def planted(subject: RunSubject) -> RunSubject:
    def lose_the_last(folder: Path) -> None:
        shutil.rmtree(folder / "checkpoints" / "step_00000020")

    return trained(steps=20, save_every=10, eval_every=0, spoil=lose_the_last)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=810)
