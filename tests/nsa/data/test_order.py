"""Documents: their two splits, their shuffling, their epochs, and the hub's shards."""

from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from nsa.config import RunConfig
from nsa.data import Batch, DataError, Loader, open_loader
from tests.nsa.data.configured import configured, texts_of, write_jsonl

datasets = pytest.importorskip("datasets", reason="needs datasets, of the extra train")


def read(loader: Loader, count: int) -> list[Batch]:
    with loader:
        return list(islice(loader, count))


def documents_of(batches: list[Batch], epoch: int = 0) -> list[bytes]:
    """The documents of whole batches, put together again; the first and the last may be cut."""
    found: list[bytearray] = []
    previous = None
    for batch in batches:
        for tokens, documents in zip(batch.tokens.tolist(), batch.documents.tolist(), strict=True):
            for column, (token, document) in enumerate(zip(tokens, documents, strict=True)):
                begins = column and document != documents[column - 1]
                is_repeated = column == 0 and previous is not None and token == previous
                if not found or begins or (column == 0 and not is_repeated):
                    found.append(bytearray())
                if not is_repeated:
                    found[-1].append(token)
            previous = tokens[-1]
    return [bytes(each) for each in found]


def known(config: RunConfig, count: int, split: Any = "train") -> list[str]:
    """The numbers of the documents that begin in the first batches, in order."""
    return [
        each[:4].decode() for each in documents_of(read(open_loader(config, split=split), count)) if each[4:5] == b":"
    ]


def test_no_document_is_in_both_splits_and_none_is_lost(tmp_path: Path) -> None:
    config = configured(f"jsonl:{write_jsonl(tmp_path / 'a.jsonl', texts_of(60))}", heldout_every=4)
    train, heldout = set(known(config, 60)), set(known(config, 60, "heldout"))
    assert not train & heldout
    assert len(train | heldout) == 60
    assert 5 <= len(heldout) <= 25


def test_copies_of_a_document_are_in_one_split(tmp_path: Path) -> None:
    texts = texts_of(30)
    config = configured(f"jsonl:{write_jsonl(tmp_path / 'a.jsonl', texts + texts[::-1])}", heldout_every=3)
    assert not set(known(config, 40)) & set(known(config, 40, "heldout"))


def test_without_shuffling_documents_come_as_they_lie(tmp_path: Path) -> None:
    found = known(configured(f"jsonl:{write_jsonl(tmp_path / 'a.jsonl', texts_of(40))}"), 4)
    assert found == sorted(found)


def test_shuffling_moves_documents_within_their_block_alone(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts_of(64))
    plain = known(configured(f"jsonl:{path}"), 12)
    shuffled = known(configured(f"jsonl:{path}", shuffle_buffer=8), 12)
    whole = len(plain) // 8 * 8 - 8
    assert shuffled[:whole] != plain[:whole]
    for start in range(0, whole, 8):
        assert sorted(shuffled[start : start + 8]) == plain[start : start + 8]


def test_each_seed_and_epoch_shuffles_its_own_way(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts_of(20))
    one = known(configured(f"jsonl:{path}", shuffle_buffer=64), 20)
    other = known(configured(f"jsonl:{path}", shuffle_buffer=64, seed=8), 20)
    num = len(set(one))
    assert one[:num] != other[:num]
    assert sorted(one[:num]) == sorted(one[num : 2 * num])
    assert one[:num] != one[num : 2 * num]


def test_epochs_are_counted(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["x" * 40, "y" * 41])
    batches = read(open_loader(configured(f"jsonl:{path}", heldout_every=10**6, seq_len=8, rows=1)), 20)
    assert [batch.epoch for batch in batches] == sorted(batch.epoch for batch in batches)
    assert batches[0].epoch == 0
    assert batches[-1].epoch == 1


def test_a_held_out_split_without_a_document_says_what_to_do(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["the only one"])
    with (
        open_loader(configured(f"jsonl:{path}", heldout_every=10**6), split="heldout") as loader,
        pytest.raises(
            DataError,
            match=r"no document falls to the held-out split; .*1 in 1000000 is held out: .*data\.heldout_every",
        ),
    ):
        next(loader)


def test_a_train_split_without_a_document_says_what_to_do(tmp_path: Path) -> None:
    texts = [text for text in texts_of(40) if heldout_every_2(text)]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    with (
        open_loader(configured(f"jsonl:{path}", heldout_every=2)) as loader,
        pytest.raises(DataError, match=r"no document falls to the train split; .*1 in 2 is held out"),
    ):
        next(loader)


def heldout_every_2(text: str) -> bool:
    """Half of all texts, by the hash that the data are split by."""
    return blake2b(text.encode(), digest_size=8).digest()[0] % 2 == 0


def test_a_batch_names_its_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_jsonl(tmp_path / f"{name}.jsonl", [name * 30])
    batches = read(open_loader(configured(f"jsonl:{tmp_path}", rows=1, heldout_every=10**6)), 4)
    assert batches[0].sources == (str(tmp_path / "a.jsonl"),)
    assert {source for batch in batches for source in batch.sources} == {
        str(tmp_path / f"{name}.jsonl") for name in "ab"
    }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A hub with three shards of FineWeb-Edu; holds what was asked of it."""
    import pyarrow
    from pyarrow.parquet import write_table

    for index in range(3):
        table = pyarrow.table({"id": ["x"] * 6, "text": texts_of(6, start=10 * index)})
        write_table(table, tmp_path / f"{index}.parquet", row_group_size=2)
    asked: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str | None, *, split: str, streaming: bool, columns: list[str]) -> Any:
        asked.append((path, name, split, streaming))
        files = [str(tmp_path / f"{index}.parquet") for index in range(3)]
        return datasets.Dataset.from_parquet(files, streaming=streaming, columns=columns, cache_dir=str(tmp_path))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_fineweb_edu_is_streamed_from_the_hub(hub: list[tuple[Any, ...]]) -> None:
    assert known(configured("fineweb_edu", subset="sample-10BT"), 2)[:3] == ["0000", "0001", "0002"]
    assert hub == [("HuggingFaceFW/fineweb-edu", "sample-10BT", "train", True)]


@pytest.mark.usefixtures("hub")
def test_the_hubs_shards_are_named_and_resumable() -> None:
    config = configured("fineweb_edu", rows=2)
    with open_loader(config) as loader:
        whole, states = [], []
        for _ in range(16):
            whole.append(next(loader))
            states.append(loader.state())
    assert {source for batch in whole for source in batch.sources} == {
        f"HuggingFaceFW/fineweb-edu, shard {number} of 3" for number in (1, 2, 3)
    }
    for at in range(15):
        with open_loader(config, state=states[at]) as resumed:
            assert next(resumed).tokens.equal(whole[at + 1].tokens)
