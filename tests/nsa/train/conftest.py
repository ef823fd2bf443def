"""What the tests of the trainer share: a model that takes a step in milliseconds, and a run of it."""

import json
from functools import partial

import pytest

from nsa.config import RunConfig, parse_config
from nsa.train import train
from nsa.train.table import read_table
from tests.nsa.train.chain import VOCABULARY, open_chain

MODEL = {"dim": 16, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 8, "d_v": 8, "vocab_size": VOCABULARY}
NSA = {"l": 4, "d": 2, "l_sel": 4, "n_sel": 3, "w": 6}
TRAIN = {"steps": 6, "seq_len": 16, "batch_size": 4, "lr": 1e-2, "log_every": 2, "eval_batches": 2, "sample_tokens": 4}


@pytest.fixture
def config(tmp_path):
    """`config(lr=…, runtime={…}, model={…}, nsa={…})`: the small run, with fields of the section train by keyword."""

    def make(*, model=None, nsa=None, runtime=None, **changes) -> RunConfig:
        return parse_config(
            {
                "model": MODEL | (model or {}),
                "nsa": NSA | (nsa or {}),
                "train": TRAIN | {"out_dir": str(tmp_path / "run")} | changes,
                "runtime": {"device": "cpu"} | (runtime or {}),
            }
        )

    return make


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of one small run with all it leaves behind, which no test changes."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    document = {"model": MODEL | {"n_layers": 2}, "nsa": NSA, "train": TRAIN | {"out_dir": str(folder)}}
    document["runtime"] = {"device": "cpu"}
    return train(parse_config(document), loader=open_chain).folder


@pytest.fixture
def run(config, monkeypatch):
    """`run(steps=…, …)` trains the small model and returns its folder; faults of the chain by `faults`. No plot."""
    monkeypatch.setattr("nsa.train.results.draw", lambda *_: None)

    def go(*, resume=None, tracer=None, faults=None, **changes):
        loader = partial(open_chain, **(faults or {}))
        return train(config(**changes), resume=resume, tracer=tracer, loader=loader).folder

    return go


@pytest.fixture
def losses():
    """`losses(folder)`: the loss of every step, with all its digits."""
    return lambda folder: [(row["step"], row["loss"]) for row in read_table(folder / "training.csv")]


@pytest.fixture
def beats():
    """`beats(folder)`: the heartbeats of the first process."""
    return lambda folder, rank=0: [
        json.loads(line) for line in (folder / f"heartbeat_rank{rank}.jsonl").read_text().splitlines()
    ]
