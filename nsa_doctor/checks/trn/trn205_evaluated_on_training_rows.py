"""TRN205 evaluated-on-training-rows

Detects: a held-out loss that is taken on rows the run trains on, by the checksums in its heartbeats.
Matters: the held-out loss falls with the training loss however much is learnt by heart, and goes into the report.
Fix: open the loader of the evaluation on the held-out split. Rows that both splits hold: nsa-doctor data.

Example:
    # faulty
    held_out = load_dataset(name, split="train[:1%]")  # rows that the run trains on
    # correct
    held_out = load_dataset(name, split="validation")
"""

from collections.abc import Iterator
from typing import Any

from nsa_doctor.artifacts.training_run.sessions import is_step
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.training_runs import trained

_FEWEST = 4  # batches that differ: data of one kind of row has no others to evaluate on


def run(subject: RunSubject) -> Iterator[Finding]:
    record = subject.record
    if not record.is_own:
        raise NotApplicableError("what another trainer's checksums are of is not known")
    trained_on = {beat.batch: beat for beat in record.beats if beat.batch is not None and is_step(beat)}
    looked_at = [(beat, beat.batch) for beat in record.beats if beat.batch is not None and beat.msg == "evaluated"]
    if not looked_at:
        raise NotApplicableError("no evaluation logs a checksum of its batch")
    if len(trained_on) < _FEWEST:
        raise NotApplicableError(f"fewer than {_FEWEST} different batches are logged")
    for look, batch in looked_at:
        same = trained_on.get(batch)
        if same is not None:
            yield Finding(
                message=(
                    f"the first batch of the evaluation at step {look.step} is that of training step {same.step}: "
                    "the held-out loss is a training loss"
                ),
                evidence={"run": subject.name, "step": look.step, "trained_at": same.step, "rank": look.rank},
                repro=subject.reproduce,
            )
            return


def planted(subject: RunSubject) -> RunSubject:
    from nsa.train.feed import Feed

    open_split = Feed._open_split

    def of_training_alone(feed: Any, split: str, state: Any) -> Any:
        return open_split(feed, "train", state)

    return trained(steps=20, eval_every=10, seams={"nsa.train.feed.Feed._open_split": of_training_alone})


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=880)
