"""TRN105 evaluations-missed

Detects: a run that was to be evaluated on held-out rows at a step, and went on without.
Matters: what it has learnt by heart looks like what it has learnt; only rows that it never saw show the difference.
Fix: look at how held-out rows are opened, and end a run that has none where its configuration asks for them.

Example:
    # faulty
    if held_out and step % eval_every == 0:  # none were found: never evaluated, and no word of it
        evaluate(model, held_out)
    # correct
    if not held_out:
        raise ValueError("eval_every is set, and there are no held-out rows")
    if step % eval_every == 0:
        evaluate(model, held_out)
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.training_run.evaluating import evaluations_due, evaluations_missed
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import numbers
from nsa_doctor.testing.training_runs import trained


def run(subject: RunSubject) -> Iterator[Finding]:
    due = evaluations_due(subject.record)
    if not due:
        raise NotApplicableError("no evaluation was due yet, or what is due is not known")
    missed = evaluations_missed(subject.record)
    if missed:
        yield Finding(
            message=f"{len(missed)} of {len(due)} evaluations were not made: of step {numbers(missed)}",
            evidence={"run": subject.name, "missed": len(missed), "due": len(due), "first_step": missed[0]},
            repro=subject.reproduce,
        )


def planted(subject: RunSubject) -> RunSubject:
    return trained(seams={"nsa.train.feed.Feed.held_out": lambda feed: []}, steps=30)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", blocked_by=("TRN103",), priority=810
)
