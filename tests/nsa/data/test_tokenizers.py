"""Tokenizers: bytes, GPT-2's and any file; ids stay below the model's vocabulary, and long documents are no trouble."""

import json
import warnings
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsa.data import DataError, open_loader
from nsa.data.documents import Document
from nsa.data.tokenizer import checked_ids
from tests.nsa.data.configured import configured, texts_of, write_jsonl

tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers, of the extra train")
pytest.importorskip("datasets", reason="needs datasets, of the extra train")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 300 ids, trained here, that has an end of text and asks for truncation."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts_of(200), trainer)
    made.enable_truncation(8)
    made.enable_padding(length=8)
    path = tmp_path_factory.mktemp("tokenizer") / "small.json"
    made.save(str(path))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", texts_of(60))


def decoded(trained: Path, ids: list[int]) -> str:
    return tokenizers.Tokenizer.from_file(str(trained)).decode(ids, skip_special_tokens=False)


def test_a_file_makes_its_own_ids_and_no_text_is_lost(trained: Path, path: Path) -> None:
    config = configured(f"jsonl:{path}", tokenizer=str(trained), vocab=300, heldout_every=10**6, seq_len=255, rows=1)
    with open_loader(config) as loader:
        assert loader.vocab_size == 300
        text = decoded(trained, next(loader).tokens[0].tolist())
    assert ("".join(texts_of(60)) * 3).startswith(text)
    assert len(text) > 256  # the text is more than its tokens


def test_an_end_token_ends_each_document(trained: Path, path: Path) -> None:
    config = configured(
        f"jsonl:{path}", tokenizer=str(trained), end_token="<end>", vocab=300, heldout_every=10**6, seq_len=255, rows=1
    )
    with open_loader(config) as loader:
        batch = next(loader)
    tokens, documents = batch.tokens[0].tolist(), batch.documents[0].tolist()
    changes = [column for column in range(255) if documents[column] != documents[column + 1]]
    assert changes
    assert [column for column in range(255) if tokens[column] == 0] == changes


def test_an_end_token_the_file_lacks_is_refused(trained: Path, path: Path) -> None:
    with pytest.raises(DataError, match=r"has no token <eos>, which data\.end_token names"):
        open_loader(configured(f"jsonl:{path}", tokenizer=str(trained), end_token="<eos>", vocab=300))


def test_gpt2_comes_from_the_hub(trained: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    made = tokenizers.Tokenizer.from_file(str(trained))
    made.add_special_tokens(["<|endoftext|>"])

    class Library:
        @staticmethod
        def from_pretrained(name: str) -> Any:
            asked.append(name)
            return made

    monkeypatch.setattr("tokenizers.Tokenizer", Library)
    with open_loader(configured(f"jsonl:{path}", tokenizer="gpt2", vocab=50_257)) as loader:
        assert loader.vocab_size == 50_257
        assert 300 in next(loader).tokens  # the end of a text
    assert asked == ["gpt2"]


def test_no_hub_is_one_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        @staticmethod
        def from_pretrained(_: str) -> Any:
            raise ConnectionError("no route")

    monkeypatch.setattr("tokenizers.Tokenizer", Library)
    with (
        open_loader(configured(f"jsonl:{path}", tokenizer="gpt2", vocab=50_257)) as loader,
        pytest.raises(DataError, match=r"^tokenizer gpt2 of the hub \(a tokenizers file.*ConnectionError: no route"),
    ):
        next(loader)


def test_a_vocabulary_larger_than_the_models_is_refused_before_reading(trained: Path, path: Path) -> None:
    with pytest.raises(DataError, match=r"model\.vocab_size must be at least 300 for .*small\.json, got 256"):
        open_loader(configured(f"jsonl:{path}", tokenizer=str(trained), vocab=256))


def test_an_id_beyond_the_vocabulary_names_document_and_id(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nsa.data import tokenizer

    plain = tokenizer._bytes
    monkeypatch.setattr(tokenizer, "_bytes", lambda texts: [ids + 200 * (ids[3] == ord("3")) for ids in plain(texts)])
    with open_loader(configured(f"jsonl:{path}", heldout_every=10**6)) as loader, pytest.raises(DataError) as caught:
        list(islice(loader, 9))
    assert str(caught.value) == (
        f"{path}, line 4: token 4 has id 258, and model.vocab_size is 256: "
        "give the model as many ids as the tokenizer has"
    )


def test_a_document_much_longer_than_a_row_warns_of_nothing(trained: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "long.jsonl", ["word and " * 20_000])
    config = configured(f"jsonl:{path}", tokenizer=str(trained), vocab=300, heldout_every=10**6)
    with warnings.catch_warnings(record=True) as warned, open_loader(config) as loader:
        warnings.simplefilter("always")
        for batch in islice(loader, 20):
            assert batch.tokens.shape == (4, 17)
            assert not batch.documents.any()
    assert warned == []


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        pytest.param(b"", "cannot be read: Exception: EOF while parsing", id="empty"),
        pytest.param(b"{}", "cannot be read: Exception: Model missing", id="no-model"),
        pytest.param(b"\xff", "is not UTF-8 text (byte 0xff)", id="bytes"),
        pytest.param(json.dumps({"model": 3}).encode(), "cannot be read: Exception:", id="wrong"),
        pytest.param(b"[" * 100_000, "cannot be read: Exception:", id="deep"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(raw: bytes, said: str, path: Path, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(raw)
    with pytest.raises(DataError) as caught:
        open_loader(configured(f"jsonl:{path}", tokenizer=f"{tmp_path}/t.json"))
    assert str(caught.value).startswith(f"tokenizer {tmp_path}/t.json: {said}")


@pytest.mark.parametrize(("highest", "is_good"), [(255, True), (256, False), (-1, False)])
def test_the_highest_id_is_one_below_the_vocabulary(highest: int, is_good: bool) -> None:
    encode = partial(checked_ids, lambda texts: [np.array([0, highest])] * len(texts), [Document("a", "a document")])
    if is_good:
        assert encode(256)[0].tolist() == [0, highest]
    else:
        with pytest.raises(DataError, match=f"a document: token 1 has id {highest}, and model.vocab_size is 256"):
            encode(256)


@pytest.mark.parametrize("name", ["no-such.json", "."])
def test_a_tokenizer_that_is_no_file_is_refused(name: str, path: Path) -> None:
    with pytest.raises(
        DataError, match=r"there is no such file: data\.tokenizer must be byte, gpt2 or a tokenizers file"
    ):
        open_loader(configured(f"jsonl:{path}", tokenizer=name))


def test_another_tokenizer_is_noticed_when_a_run_is_resumed(trained: Path, path: Path) -> None:
    with open_loader(configured(f"jsonl:{path}", vocab=300)) as loader:
        state = loader.state()
    with pytest.raises(DataError, match=r"of a run with data\.tokenizer 'byte' \(str\)"):
        open_loader(configured(f"jsonl:{path}", tokenizer=str(trained), vocab=300), state=state)
