"""The rows of a step are the same however many processes share it, and the loader's failures are reported."""

import pytest
import torch

from nsa.data import LoaderStalledError
from nsa.train import TrainError
from nsa.train.feed import Feed
from nsa.train.world import World
from tests.nsa.train.chain import open_chain


def rows(feed, steps):
    """The rows of each step, as a set."""
    return [{tuple(row.tolist()) for batch in feed.step() for row in batch.tokens} for _ in range(steps)]


@pytest.mark.parametrize(("size", "batch_size", "accumulated"), [(2, 4, 1), (2, 1, 4), (2, 2, 3), (4, 4, 1), (4, 1, 4)])
def test_several_processes_see_the_rows_of_one(size, batch_size, accumulated, config):
    changes = {"model": {"vocab_size": 256}, "batch_size": batch_size, "accumulate_grad_batches": accumulated}
    whole = Feed(config(**changes), World(), None)
    shares = [Feed(config(**changes), World(rank, size), None) for rank in range(size)]
    expected, parts = rows(whole, 3), [rows(share, 3) for share in shares]
    for feed in (whole, *shares):
        feed.close()
    assert [set().union(*step) for step in zip(*parts, strict=True)] == expected
    assert len(expected[0]) == batch_size * accumulated


def test_a_position_holds_for_another_number_of_processes(config):
    changes = {"model": {"vocab_size": 256}, "batch_size": 4}
    two = Feed(config(**changes), World(1, 2), None)
    rows(two, 3)
    one, again = Feed(config(**changes), World(), two.state()), Feed(config(**changes), World(), None)
    assert rows(one, 1) == rows(again, 4)[3:]
    for feed in (two, one, again):
        feed.close()


def test_held_out_rows_are_the_same_each_time_and_not_those_of_training(config):
    feed = Feed(config(), World(), None, open_chain)
    first, second = feed.held_out(), feed.held_out()
    assert len(first) == 2
    assert all(torch.equal(one.tokens, two.tokens) for one, two in zip(first, second, strict=True))
    assert not any(torch.equal(first[0].tokens, batch.tokens) for batch in feed.step())


def test_no_evaluation_asks_for_no_held_out_rows(config):
    assert Feed(config(eval_batches=0), World(), None, open_chain).held_out() == []


def test_a_loader_that_stalls_leaves_the_stacks_and_ends_the_run(run, tmp_path):
    def wait(number):
        if number == 2:
            raise LoaderStalledError("reading", 120.5, "shard 7", 120.0)

    with pytest.raises(TrainError) as caught:
        run(faults={"wait": wait}, eval_batches=0)
    assert caught.value.code == 4
    assert "stage reading of shard 7" in str(caught.value)
    (path,) = (tmp_path / "run").glob("watchdog_stackdump_*.txt")
    assert "waiting for a batch of step 3 has taken 120.5 s" in path.read_text()
