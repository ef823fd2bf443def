"""Evaluations on rows that were trained on: found whichever rank or session tells, and no alarm on held-out ones."""

import pytest

from nsa.train.feed import Feed
from nsa_doctor.artifacts.judging import judge
from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.testing.training_runs import trained
from tests.nsa_doctor.artifacts.training_run.test_watch_runs import findings_of

SHORT = {"steps": 20, "eval_every": 10, "sample_tokens": 0, "save_every": 0}
OPEN_SPLIT = Feed._open_split


def judged(subject):
    return judge(registry.load("TRN205"), subject)


def of_training(feed, split, state):
    return OPEN_SPLIT(feed, "train", state)


@pytest.mark.parametrize("changes", [{}, {"accumulate_grad_batches": 2, "batch_size": 4}], ids=["plain", "accumulates"])
def test_rows_of_the_training_split_are_reported_once_and_alone(changes):
    (finding,) = findings_of(trained(**SHORT, **changes, seams={"nsa.train.feed.Feed._open_split": of_training}))
    assert finding == (
        "TRN205 the first batch of the evaluation at step 0 is that of training step 1: "
        "the held-out loss is a training loss"
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 20))])
def test_held_out_rows_raise_no_alarm(seed):
    assert judged(trained(**SHORT, seed=seed)).verdict is Verdict.PASS


def drawn(evaluated, batches=("a", "b", "c", "d", "e"), *, is_own=True):
    beats = [Beat(step=n, msg="step", loss=5.0, batch=batch) for n, batch in enumerate(batches, 1)]
    beats += [Beat(step=len(batches), rank=rank, msg="evaluated", batch=batch) for rank, batch in enumerate(evaluated)]
    return RunSubject(name="run", now=0.0, record=RunRecord(folder="run", beats=tuple(beats), is_own=is_own))


def test_another_ranks_evaluation_counts_too():
    (finding,) = judged(drawn(["x", "d"])).findings
    assert (finding.evidence["rank"], finding.evidence["trained_at"]) == (1, 4)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (drawn([None]), "no evaluation logs a checksum of its batch"),
        (drawn(["a"], ["a", "b", "c"] * 3), "fewer than 4 different batches are logged"),
        (drawn(["a"], is_own=False), "what another trainer's checksums are of is not known"),
    ],
    ids=["an older run", "rows all alike", "another trainer"],
)
def test_what_tells_too_little_is_not_judged(run, reason):
    end = judged(run)
    assert (end.verdict, end.reason) == (Verdict.SKIP, reason)
