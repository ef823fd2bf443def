"""A position in the data is exact: at each batch, on any number of ranks, whatever the source."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa.config import RunConfig
from nsa.data import Batch, DataError, open_loader
from tests.nsa.data.configured import configured, same, texts_of, write_jsonl

pytest.importorskip("datasets", reason="needs datasets, of the extra train")

Made = Callable[..., RunConfig]


def jsonl(folder: Path, **values: Any) -> RunConfig:
    for index in range(3):
        write_jsonl(folder / f"{index}.jsonl", texts_of(9, start=20 * index))
    return configured(f"jsonl:{folder}", **values)


def text(folder: Path, **values: Any) -> RunConfig:
    (folder / "a.txt").write_text("\n\n".join(texts_of(12)), encoding="utf-8")
    (folder / "b.txt").write_text("\n\n".join(texts_of(5, start=50)), encoding="utf-8")
    return configured(f"text:{folder}/*.txt", **values)


def parquet(folder: Path, **values: Any) -> RunConfig:
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"text": texts_of(23)}), folder / "a.parquet", row_group_size=5)
    return configured(f"parquet:{folder}/a.parquet", **values)


SOURCES: dict[str, Made] = {
    "synthetic": lambda _, **values: configured("synthetic", **values),
    "needle": lambda _, **values: configured("needle", **{**values, "seq_len": 192}),
    "text": text,
    "jsonl": jsonl,
    "jsonl-shuffled": lambda folder, **values: jsonl(folder, shuffle_buffer=5, **values),
    "parquet": parquet,
}
every_source = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in SOURCES.items()])


def batches(config: RunConfig, count: int, **where: Any) -> list[Batch]:
    with open_loader(config, **where) as loader:
        return list(islice(loader, count))


@every_source
def test_each_state_goes_on_with_exactly_the_next_batch(make: Made, tmp_path: Path) -> None:
    config = make(tmp_path)
    with open_loader(config) as loader:
        states = [loader.state()]
        whole = []
        for _ in range(12):
            whole.append(next(loader))
            states.append(json.loads(json.dumps(loader.state())))
    for at, state in enumerate(states[:-1]):
        assert same(batches(config, 1, state=state)[0], whole[at])


@every_source
def test_a_resumed_loader_says_the_same_state(make: Made, tmp_path: Path) -> None:
    config = make(tmp_path)
    with open_loader(config) as loader:
        list(islice(loader, 5))
        state = loader.state()
        list(islice(loader, 3))
        later = loader.state()
    with open_loader(config, state=state) as resumed:
        assert resumed.state() == state
        list(islice(resumed, 3))
        assert resumed.state() == later


@every_source
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_see_what_one_alone_sees(make: Made, world_size: int, tmp_path: Path) -> None:
    alone = batches(make(tmp_path, rows=6), 5)
    for rank in range(world_size):
        own = batches(make(tmp_path, rows=6 // world_size), 5, rank=rank, world_size=world_size)
        for whole, part in zip(alone, own, strict=True):
            assert torch.equal(whole.tokens[rank::world_size], part.tokens)
            assert torch.equal(whole.documents[rank::world_size], part.documents)


def test_a_state_may_be_resumed_on_another_number_of_ranks(tmp_path: Path) -> None:
    whole = batches(jsonl(tmp_path, rows=4), 6)
    with open_loader(jsonl(tmp_path, rows=2), rank=1, world_size=2) as loader:
        list(islice(loader, 3))
        state = loader.state()
    assert same(batches(jsonl(tmp_path, rows=4), 1, state=state)[0], whole[3])


def test_two_loaders_give_the_same_stream(tmp_path: Path) -> None:
    config = jsonl(tmp_path, shuffle_buffer=7)
    assert all(same(one, other) for one, other in zip(batches(config, 8), batches(config, 8), strict=True))


def test_batches_are_counted_over_all_lives(tmp_path: Path) -> None:
    with open_loader(jsonl(tmp_path)) as loader:
        assert [batch.step for batch in islice(loader, 3)] == [0, 1, 2]
        state = loader.state()
    assert [batch.step for batch in batches(jsonl(tmp_path), 2, state=state)] == [3, 4]


def test_files_may_have_moved_between_two_lives(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    with open_loader(jsonl(tmp_path / "here")) as loader:
        list(islice(loader, 2))
        state, following = loader.state(), next(loader)
    assert torch.equal(batches(jsonl(tmp_path / "there"), 1, state=state)[0].tokens, following.tokens)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        pytest.param({"seed": 8}, "train.seed 7 (int), this run has 8 (int)", id="seed"),
        pytest.param({"seq_len": 17}, "train.seq_len 16 (int), this run has 17 (int)", id="seq_len"),
        pytest.param({"shuffle_buffer": 2}, "data.shuffle_buffer 0 (int), this run has 2 (int)", id="shuffle_buffer"),
        pytest.param({"heldout_every": 9}, "data.heldout_every 20 (int), this run has 9 (int)", id="heldout_every"),
    ],
)
def test_a_state_of_another_run_is_refused(changed: dict[str, Any], named: str, tmp_path: Path) -> None:
    with open_loader(jsonl(tmp_path)) as loader:
        state = loader.state()
    with pytest.raises(DataError) as caught:
        open_loader(jsonl(tmp_path, **changed), state=state)
    assert named in str(caught.value)


def test_a_state_of_the_other_split_is_refused() -> None:
    with open_loader(configured("synthetic")) as loader:
        state = loader.state()
    with pytest.raises(DataError, match=r"split 'train' \(str\), this run has 'heldout' \(str\)"):
        open_loader(configured("synthetic"), state=state, split="heldout")


def test_a_state_of_other_files_is_refused(tmp_path: Path) -> None:
    config = jsonl(tmp_path)
    with open_loader(config) as loader:
        state = loader.state()
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    with pytest.raises(DataError, match="the files' names and sizes"):
        open_loader(config, state=state)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda state: {}, id="empty"),
        pytest.param(lambda state: state | {"format": 2}, id="format"),
        pytest.param(lambda state: state | {"step": -1}, id="negative-step"),
        pytest.param(lambda state: state | {"step": 1.5}, id="fractional-step"),
        pytest.param(lambda state: state | {"rows": {}} | {"identity": {}}, id="no-identity"),
        pytest.param(lambda state: state | {"rows": {"shard": "x"}}, id="text-for-number"),
        pytest.param(lambda state: state | {"rows": {"nonsense": 1}}, id="unknown-number"),
        pytest.param(lambda state: state | {"rows": state["rows"] | {"offset": -3}}, id="negative-offset"),
        pytest.param(lambda state: state | {"rows": [1]}, id="list"),
        pytest.param(lambda state: state | {"identity": {"two\nlines": 1}}, id="unknown-identity"),
    ],
)
def test_a_spoilt_state_is_one_sentence(spoil: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    with open_loader(jsonl(tmp_path)) as loader:
        state = loader.state()
    with pytest.raises(DataError, match="the saved position in the data") as caught:
        open_loader(jsonl(tmp_path), state=spoil(state))
    assert "\n" not in str(caught.value)


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    with open_loader(jsonl(tmp_path)) as loader:
        state = loader.state()
    with (
        open_loader(jsonl(tmp_path), state=state | {"rows": state["rows"] | {"shard": 9}}) as resumed,
        pytest.raises(DataError, match="has 3 shards, where the run stood at number 10"),
    ):
        next(resumed)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 1), (1, 1), (2, 2), (0, 0)])
def test_a_rank_that_cannot_be_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ValueError, match="rank must be at least 0 and below"):
        open_loader(configured("synthetic"), rank=rank, world_size=world_size)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_that_cannot_be_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="limit_seconds must be above 0"):
        open_loader(configured("synthetic"), limit_seconds=limit)
