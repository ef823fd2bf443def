"""Runs of two processes that really trained: silent where healthy, and the first who ended named."""

from dataclasses import replace

import pytest

from nsa_doctor.artifacts.judging import judge
from nsa_doctor.artifacts.training_run.rank_consistency import behind, comparable, death, disagreement
from nsa_doctor.artifacts.training_run.record import Beat, Failure, RunRecord
from nsa_doctor.artifacts.training_run.shared_rows import comparable_steps, shared_rows
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core import registry
from nsa_doctor.testing.ranks import trained_by_two
from tests.nsa_doctor.artifacts.training_run.test_watch_runs import findings_of

full = pytest.mark.full


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=full) for kind in ("ddp", "fsdp2")])
def test_a_healthy_run_of_two_processes_raises_no_alarm(kind):
    subject = trained_by_two(runtime={"distributed": kind}, save_every=8)
    assert subject.record.ranks == (0, 1)
    assert findings_of(subject) == []


@full
def test_a_process_that_is_killed_is_named_and_reported_once():
    (finding,) = findings_of(trained_by_two("dies"))
    assert finding == "DST103 rank 1 ended the run after step 11: ended without a word"


def record(*ranks, ends=(), **more):
    """Heartbeats of steps as each rank has their losses, and the last words of some."""
    beats = [Beat(rank=r, step=n, loss=x, ts=1e9 + n) for r, losses in enumerate(ranks) for n, x in enumerate(losses)]
    beats += [Beat(rank=rank, msg=f"ended: {words}", ts=2e9 + number) for number, (rank, words) in enumerate(ends)]
    return RunRecord(folder="run", beats=tuple(beats), **more)


LOSSES = [5.0 - 0.1 * step for step in range(30)]
LOST = "[pair.cc:534] gloo: Connection closed by peer"


def test_losses_of_own_batches_are_not_compared():
    other = [loss + 0.01 * (-1) ** step for step, loss in enumerate(LOSSES)]
    assert (comparable(record(LOSSES, other)), disagreement(record(LOSSES, other))) == (False, None)


def test_losses_that_were_one_and_are_two_are_reported_from_the_first_step_on():
    found = disagreement(record(LOSSES, LOSSES, [*LOSSES[:20], *(loss + 0.01 for loss in LOSSES[20:])]))
    assert (found.rank, found.step, found.quantity) == (2, 20, "loss")


def test_a_loss_that_is_finite_on_one_rank_alone_is_a_disagreement():
    assert disagreement(record(LOSSES, [*LOSSES[:-1], float("nan")])).step == 29
    nan = [*LOSSES[:-1], float("nan")]
    assert disagreement(record(nan, nan)) is None


@pytest.mark.parametrize(("lag", "count"), [(0, 0), (1, 0), (2, 0), (10, 1)])
def test_a_rank_is_behind_by_several_steps(lag, count):
    assert len(behind(record(LOSSES, LOSSES[: 30 - lag]))) == count


def test_a_rank_without_a_heartbeat_is_missing_where_others_have_one():
    found = behind(record(LOSSES, LOSSES, environment={"world_size": 3}))
    assert [(each.rank, each.step) for each in found] == [(2, None)]
    assert behind(record(LOSSES, environment={"world_size": 3})) == []


@pytest.mark.parametrize(
    ("ends", "failures", "named"),
    [
        ([(1, "out of memory"), (0, LOST)], [], (1, "out of memory")),
        ([(0, LOST), (1, "out of memory")], [], (1, "out of memory")),
        ([(0, "rank 1 ended the run: disk full")], [], (1, "disk full")),
        ([(0, LOST)], [(1, "disk full")], (1, "disk full")),
        ([(0, LOST)], [(0, LOST)], (1, "ended without a word")),
        (
            [(0, "stopped by SIGTERM after step 3, and saved"), (1, "stopped by SIGTERM after step 3, and saved")],
            [],
            None,
        ),
        ([(0, "out of memory"), (1, "out of memory")], [], None),
        ([], [], None),
    ],
)
def test_who_ended_first_is_named_with_its_own_reason(ends, failures, named):
    left = tuple(Failure(rank=rank, reason=reason, ts=1.0) for rank, reason in failures)
    found = death(record(LOSSES, LOSSES, ends=ends, failures=left))
    assert (None if found is None else (found.rank, found.reason)) == named


def rows(*ranks, first=1):
    """Heartbeats of steps from `first` on, with what each rank trained on; None is a step that it does not tell."""
    beats = [
        Beat(rank=rank, step=step, loss=3.0, batch=None if batch is None else f"{batch:08x}")
        for rank, batches in enumerate(ranks)
        for step, batch in enumerate(batches, first)
    ]
    return RunRecord(folder="run", beats=tuple(beats), is_own=True)


OWN = list(range(20))
OTHER = list(range(100, 120))


def test_ranks_with_equal_batches_are_named_with_the_first_step():
    (found,) = shared_rows(rows(OWN, OTHER, OWN, OWN))
    assert (found.ranks, found.step, found.alike, found.steps) == ((0, 2, 3), 1, 20, 20)


def test_groups_of_ranks_are_distinguished():
    assert [each.ranks for each in shared_rows(rows(OWN, OTHER, OWN, OTHER))] == [(0, 2), (1, 3)]


def test_ranks_that_share_their_rows_since_a_resume_are_found():
    (found,) = shared_rows(rows(OWN, [*OTHER[:12], *OWN[12:]]))
    assert (found.ranks, found.step, found.alike) == ((0, 1), 13, 8)


@pytest.mark.parametrize(
    "ranks",
    [
        (OWN,),
        (OWN, OTHER),
        (OWN, OWN[1:]),
        (OWN, [*OWN[:3], *OTHER[3:]]),
        (OWN, [*OWN[:10], *OTHER[10:]]),
        ([7] * 20, [7] * 20),
        (OWN, [own if step % 3 == 0 else 100 + step for step, own in enumerate(OWN)]),
        (OWN, [None] * 17 + OWN[17:]),
        ([None] * 20, [None] * 20),
    ],
    ids=[
        "one",
        "sharded",
        "shifted",
        "three alike",
        "mended",
        "the same row",
        "some alike",
        "few logged",
        "not logged",
    ],
)
def test_batches_that_differ_or_say_nothing_raise_no_alarm(ranks):
    assert shared_rows(rows(*ranks)) == []


def test_steps_can_be_compared_where_two_ranks_tell_them():
    assert comparable_steps(rows(OWN, [None] * 17 + OWN[17:])) == 3


def test_processes_of_another_trainer_may_share_their_rows():
    record = replace(rows(OWN, OWN), is_own=False)
    assert of_rows(record) == ("SKIP", "processes of another trainer may share their rows on purpose")


def test_a_run_that_does_not_tell_its_batches_is_not_judged_by_them():
    reason = "fewer than 4 steps of two processes log a checksum of their batch"
    assert of_rows(rows([None] * 20, OWN)) == ("SKIP", reason)
    assert of_rows(rows(OWN)) == ("SKIP", "the heartbeats are of one process")
    assert of_rows(rows(OWN, OTHER)) == ("PASS", "")


def of_rows(run):
    result = judge(registry.load("DST104"), RunSubject(name="run", record=run, now=0.0))
    return result.verdict, result.reason
