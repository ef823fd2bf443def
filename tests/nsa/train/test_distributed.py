"""Two processes with gloo: the losses of one, and an end within bounded time, with its reason, when one goes wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nsa.train import TrainError
from nsa.train.feed import rows_and_batches
from nsa.train.setup import build
from nsa.train.table import read_table
from nsa.train.world import World

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(240)  # two processes that import torch, beside other workers' tests


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory):
    """What became of every scenario of `two_ranks`, and the folder with their runs."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.nsa.train.two_ranks", str(folder)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=True)
    return json.loads(answer.stdout), folder


def sentences(scenarios, name):
    return [text.partition("SENTENCE ")[2].strip() for text in scenarios[0][name]["said"]]


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("ddp", {}),
        ("fsdp2", {}),
        ("resumed", {}),
        ("context", {}),
        ("context-fsdp2", {"model": {"n_layers": 2}}),
        ("context-of-four", {}),
        ("alone", {"model": {"branch": "win"}, "batch_size": 1, "accumulate_grad_batches": 4}),
    ],
)
def test_two_processes_have_the_losses_of_one(name, alike, scenarios, run, losses):
    assert set(scenarios[0][name]["codes"]) == {0}, scenarios[0][name]["said"]
    expected, found = losses(run(**alike)), losses(scenarios[1] / name)
    assert [step for step, _ in found] == (list("456") if name == "resumed" else list("123456"))
    for (_, one), (_, two) in zip(expected[-len(found) :], found, strict=True):
        assert float(two) == pytest.approx(float(one), rel=1e-4)


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "resumed", "context"])
def test_the_weights_are_whole_and_those_of_one(name, scenarios, run):
    one, two = load_file(run() / "model.safetensors"), load_file(scenarios[1] / name / "model.safetensors")
    for weight, value in one.items():
        torch.testing.assert_close(two[weight], value, rtol=1e-2, atol=1e-4)


def test_every_process_has_its_heartbeat(scenarios, beats):
    for rank in (0, 1):
        found = beats(scenarios[1] / "ddp", rank)
        assert {beat["rank"] for beat in found} == {rank}
        assert [beat["step"] for beat in found if beat["msg"] == "step"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "context"])
def test_every_process_tells_a_batch_of_its_own(kind, scenarios, beats):
    first, second = (
        [beat["batch"] for beat in beats(scenarios[1] / kind, rank) if beat["msg"] == "step"] for rank in (0, 1)
    )
    made = [(one, other) for one, other in zip(first, second, strict=True) if one is not None]
    assert len({each for pair in made for each in pair}) == 12


def test_the_gates_of_shards_are_those_of_copies(scenarios):
    copies, shards = (read_table(scenarios[1] / kind / "gates.csv") for kind in ("ddp", "fsdp2"))
    norms = [[float(row["norm"]) for row in rows] for rows in (copies, shards)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert len(set(norms[1])) == len(norms[1])


def test_the_gates_and_the_held_out_loss_of_shared_rows_are_those_of_whole_ones(scenarios, run):
    one, two = ((read_table(folder / "gates.csv"), folder) for folder in (run(), scenarios[1] / "context"))
    for expected, found in zip(one[0], two[0], strict=True):
        assert [float(found[name]) for name in found] == pytest.approx([float(x) for x in expected.values()], rel=1e-3)
    losses = [[float(row["loss"]) for row in read_table(each[1] / "evaluations.csv")] for each in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_a_checkpoint_of_shards_is_read_by_one_process(scenarios, run, losses):
    folder = run(save_every=3, resume=str(scenarios[1] / "fails"))
    assert [step for step, _ in losses(folder)] == list("456")
    expected = losses(scenarios[1] / "resumed")
    for (_, one), (_, two) in zip(losses(folder), expected, strict=True):
        assert float(two) == pytest.approx(float(one), rel=1e-4)


def test_a_process_that_fails_ends_the_run_with_its_reason(scenarios):
    reason = "shard 3 of corpus: cannot be read: No such file or directory"
    assert scenarios[0]["fails"]["codes"] == [6, 4]
    assert sentences(scenarios, "fails") == [f"rank 1 ended the run: {reason}", reason]


def test_a_process_that_is_killed_ends_the_run_and_is_named(scenarios):
    assert scenarios[0]["dies"]["codes"] == [6, -9]
    assert sentences(scenarios, "dies")[0].startswith("rank 1 ended without a word, its last heartbeat ")
    assert scenarios[0]["dies"]["seconds"] < 40


def test_of_three_processes_the_one_that_was_killed_is_named_by_both_others(scenarios):
    assert scenarios[0]["dies-of-three"]["codes"] == [6, -9, 6]
    for said in (sentences(scenarios, "dies-of-three")[rank] for rank in (0, 2)):
        assert said.startswith("rank 1 ended without a word, its last heartbeat ")


def test_a_process_that_only_hears_of_an_end_leaves_no_reason_of_its_own(scenarios):
    assert not list((scenarios[1] / "dies-of-three").glob("failure_rank*.json"))
    assert [path.name for path in (scenarios[1] / "fails").glob("failure_rank*.json")] == ["failure_rank1.json"]


def test_processes_that_drift_apart_are_noticed_by_name(scenarios):
    assert scenarios[0]["drifts"]["codes"] == [6, 6]
    assert sentences(scenarios, "drifts") == ["after step 4 rank 1 holds another norm.weight than rank 0"] * 2


def test_a_signal_to_one_process_saves_and_stops_both(scenarios):
    assert scenarios[0]["stopped"]["codes"] == [143, 143]
    assert [path.name for path in (scenarios[1] / "stopped" / "checkpoints").iterdir()] == ["step_00000004"]


def test_fewer_rows_than_processes_are_refused(scenarios):
    assert scenarios[0]["too-small"]["codes"] == [2, 2]
    assert "must be a multiple of the 2 processes" in sentences(scenarios, "too-small")[0]


@pytest.mark.parametrize(
    ("batch_size", "accumulated", "processes", "expected"),
    [(8, 1, 1, (8, 1)), (8, 1, 2, (4, 1)), (1, 16, 2, (1, 8)), (8, 3, 2, (6, 2)), (4, 1, 4, (1, 1)), (6, 2, 4, (3, 1))],
)
def test_the_rows_of_a_step_are_dealt_out_evenly(batch_size, accumulated, processes, expected, config):
    train = config(batch_size=batch_size, accumulate_grad_batches=accumulated).train
    rows, batches = rows_and_batches(train, processes)
    assert (rows, batches) == expected
    assert rows * batches * processes == batch_size * accumulated


@pytest.mark.parametrize(
    ("changes", "world", "says"),
    [
        ({"seq_len": 12}, World(0, 2, 0, 2), "train.seq_len must be of a length that runtime"),
        ({"on_nonfinite": "trace"}, World(0, 2, 0, 2), "train.on_nonfinite must be stop or skip with context_parallel"),
    ],
    ids=["length", "trace"],
)
def test_rows_that_cannot_be_shared_are_refused(changes, world, says, config):
    with pytest.raises(TrainError, match=says):
        build(config(**changes), world, torch.device("cpu"))


def test_one_process_shares_no_rows(run):
    with pytest.raises(TrainError, match="context_parallel must divide the number of processes, 1"):
        run(runtime={"context_parallel": 2})


def test_several_processes_without_a_way_to_share_are_refused(config):
    with pytest.raises(TrainError, match=r"runtime\.distributed must be ddp or fsdp2 for 2 processes, got none"):
        build(config(runtime={"distributed": "none"}), World(0, 2), torch.device("cpu"))
