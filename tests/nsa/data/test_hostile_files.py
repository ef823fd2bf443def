"""Files that cannot be read as they should be are one sentence each, which names the file and what is wrong with it."""

import gzip
import json
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from nsa.data import DataError, open_loader
from tests.nsa.data.configured import configured, texts_of, write_jsonl

pytest.importorskip("datasets", reason="needs datasets, of the extra train")

GOOD = "".join(json.dumps({"text": text}) + "\n" for text in texts_of(200))


def refusal(dataset: str, **values: Any) -> str:
    """The sentence with which a run on this dataset ends; it fails when there is none."""
    with pytest.raises(DataError) as caught, open_loader(configured(dataset, **values)) as loader:
        list(islice(loader, 200))
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert len(sentence) < 600
    return sentence


def rotten_gzip(raw: bytes) -> bytes:
    return raw[:-8] + b"xxxx" + raw[-4:]


JSONL: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "jsonl:{path}: the file is empty"),
    "blank": (b"\n \n\t\n", "jsonl:{path}: holds no document with text"),
    "no-json": ((GOOD + "{nope}\n").encode(), "{path}, line 201: is no JSON: Expecting property name"),
    "cut-line": (GOOD.encode()[:-9], "{path}, line 200: is no JSON: Unterminated string"),
    "array": (b"[1, 2]\n", "{path}, line 1: must be a JSON object with a field text, got [1, 2] (list)"),
    "text": (b'"abc"\n', "{path}, line 1: must be a JSON object with a field text, got 'abc' (str)"),
    "null": (b"null\n", "{path}, line 1: must be a JSON object with a field text, got nothing"),
    "other-field": (
        b'{"body": "a", "title": "b"}\n',
        "{path}, line 1: has no field text; its fields are body, title: name",
    ),
    "number": (b'{"text": 3}\n', "{path}, line 1: field text must be text, got 3 (int)"),
    "all-null": (b'{"text": null}\n{"text": ""}\n', "jsonl:{path}: holds no document with text"),
    "deep": (b'{"text": ' + b"[" * 100_000 + b"\n", "{path}, line 1: is no JSON: maximum recursion depth"),
    "long-number": (b'{"text": ' + b"1" * 5000 + b"}\n", "{path}, line 1: is no JSON: Exceeds the limit"),
    "half-a-pair": (b'{"text": "a\\ud800"}\n' * 40, "{path}, line 1: holds half a surrogate pair at character 1"),
    "latin-1": (GOOD.encode() + b'{"text": "\xe9"}\n', "{path}: line 201 is not UTF-8 text (byte 0xe9) (stage read)"),
    "utf-16": (GOOD.encode("utf-16"), "{path}: line 1 is not UTF-8 text (byte 0xff) (stage read)"),
    "control-characters": (b'{"\\u001b[31m": 1}\n', r"{path}, line 1: has no field text; its fields are '\x1b[31m'"),
}


@pytest.mark.parametrize(("raw", "said"), [pytest.param(*case, id=name) for name, case in JSONL.items()])
def test_a_jsonl_file_is_refused(raw: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "shard.jsonl"
    path.write_bytes(raw)
    assert refusal(f"jsonl:{path}").startswith(said.replace("{path}", str(path)))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(lambda raw: raw[: len(raw) // 2], "is cut short or damaged: Compressed file ended", id="cut"),
        pytest.param(rotten_gzip, "is cut short or damaged: CRC check failed", id="crc"),
        pytest.param(lambda raw: GOOD.encode(), "is cut short or damaged: Not a gzipped file", id="no-gzip"),
    ],
)
def test_a_gzip_file_is_refused(spoil: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    path = tmp_path / "shard.jsonl.gz"
    path.write_bytes(spoil(gzip.compress(GOOD.encode())))
    assert refusal(f"jsonl:{path}").startswith(f"{path}: {said}")


def table(path: Path, **columns: Any) -> Path:
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.table(columns), path, row_group_size=50)
    return path


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(lambda raw: raw[:-100], "cannot be read: ArrowInvalid: Parquet magic bytes not found", id="cut"),
        pytest.param(lambda raw: raw[:150] + b"\xff" * 900 + raw[1050:], "cannot be read: OSError:", id="rotten"),
        pytest.param(lambda raw: GOOD.encode(), "cannot be read: ArrowInvalid: Parquet magic bytes", id="no-parquet"),
    ],
)
def test_a_parquet_file_is_refused(spoil: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", text=texts_of(300))
    path.write_bytes(spoil(path.read_bytes()))
    assert refusal(f"parquet:{path}").startswith(f"{path}: {said}")


def test_an_empty_parquet_file_among_others_is_refused(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet", text=texts_of(30))
    (tmp_path / "b.parquet").write_bytes(b"")
    assert refusal(f"parquet:{tmp_path}").startswith(f"{tmp_path}/b.parquet: cannot be read: ArrowInvalid")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        pytest.param(
            {"body": ["a"]}, ": has no field text; its fields are body: name one as data.text_field", id="name"
        ),
        pytest.param({"text": [1]}, ", row 1: field text must be text, got 1 (int)", id="number"),
        pytest.param({"text": [b"\xff"]}, r", row 1: field text must be text, got b'\xff' (bytes)", id="bytes"),
        pytest.param({"text": [["a"]]}, ", row 1: field text must be text, got ['a'] (list)", id="list"),
    ],
)
def test_a_parquet_column_is_refused(columns: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", **columns)
    assert refusal(f"parquet:{path}").startswith(f"{path}{said}")


def test_a_later_file_of_another_schema_is_refused_when_its_turn_comes(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet", text=texts_of(3))
    table(tmp_path / "b.parquet", words=["x"])
    assert refusal(f"parquet:{tmp_path}").startswith(f"{tmp_path}/b.parquet: has no field text; its fields are words")


def test_text_that_is_not_utf8_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("good\n\nalso gööd\n".encode() + b"bad \xff\n")
    assert refusal(f"text:{path}") == f"{path}: line 4 is not UTF-8 text (byte 0xff) (stage read)"


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_jsonl(tmp_path / f"{name}.jsonl", texts_of(20))
    with open_loader(configured(f"jsonl:{tmp_path}")) as loader:
        (tmp_path / "b.jsonl").unlink()
        with pytest.raises(DataError) as caught:
            list(islice(loader, 200))
    assert str(caught.value) == f"{tmp_path}/b.jsonl: has vanished (stage open)"


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts_of(3))

    def deny(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)  # root may read everything
    assert refusal(f"jsonl:{path}") == f"{path}: cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        pytest.param("text:{folder}/no.txt", "text:{folder}/no.txt: there is no such file or folder", id="missing"),
        pytest.param("text:{folder}/*.txt", "text:{folder}/*.txt: there is no such file or folder, and as", id="glob"),
        pytest.param("text:{folder}", "text:{folder}: the folder has no file that ends in .txt", id="folder"),
        pytest.param("jsonl:{folder}/pipe", "{folder}/pipe: must be a regular file, not a pipe or a device", id="pipe"),
        pytest.param("text:/dev/zero", "/dev/zero: must be a regular file, not a pipe or a device", id="device"),
        pytest.param("text:" + "y" * 900, "'text:yyyy", id="long-name"),
        pytest.param("text:~nobody-at-all/x", "text:~nobody-at-all/x: cannot be read: RuntimeError", id="home"),
        pytest.param("text:{folder}/a::b", "{folder}/a::b: the path must not hold '::'", id="colons"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(dataset: str, said: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a::b").write_text("some text")
    assert refusal(dataset.replace("{folder}", str(tmp_path))).startswith(said.replace("{folder}", str(tmp_path)))


@pytest.mark.parametrize(
    "name", ["a[1].txt", "b*.txt", "c?.txt", "ü ñ.txt", "-x.txt", "zip:q.txt", "100%.txt", "{d}.txt"]
)
def test_a_name_is_taken_as_it_stands(name: str, tmp_path: Path) -> None:
    folder = tmp_path / ".hidden" / "[odd] name"
    folder.mkdir(parents=True)
    (folder / name).write_text("some text to train on")
    with open_loader(configured(f"text:{folder / name}", seq_len=21, rows=1, heldout_every=10**6)) as loader:
        assert bytes(next(loader).tokens[0].tolist()[:21]) == b"some text to train on"


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"text": "marked"}\n' * 9)
    with open_loader(configured(f"jsonl:{path}", seq_len=5, rows=1, heldout_every=10**6)) as loader:
        assert bytes(next(loader).tokens[0].tolist()) == b"marked"


def test_compressed_files_read_like_plain_ones(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(GOOD.encode()))
    one, other = (open_loader(configured(f"jsonl:{tmp_path}/{name}", rows=8)) for name in ("a.jsonl", "b.jsonl.gz"))
    with one, other:
        assert next(one).tokens.equal(next(other).tokens)


def test_another_field_may_hold_the_text(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["the body"] * 9, field="body")
    with open_loader(configured(f"jsonl:{path}", text_field="body", seq_len=7, rows=1, heldout_every=10**6)) as loader:
        assert bytes(next(loader).tokens[0].tolist()) == b"the body"


@pytest.mark.parametrize(
    ("by", "expected"),
    [("line", [b"one", b"two", b"three"]), ("paragraph", [b"one\ntwo", b"three"]), ("file", [b"one\ntwo\n\nthree"])],
)
def test_a_text_file_is_cut_into_documents(by: str, expected: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\ntwo\r\n\r\nthree")
    total = sum(map(len, expected))
    with open_loader(configured(f"text:{path}", text_by=by, seq_len=total - 1, rows=1, heldout_every=10**6)) as loader:
        batch = next(loader)
    tokens, documents = batch.tokens[0], batch.documents[0]
    assert [bytes(tokens[documents == index].tolist()) for index in range(int(documents.max()) + 1)] == expected


def test_reading_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    path = write_jsonl(tmp_path / "a.jsonl", texts_of(20))
    with open_loader(configured(f"jsonl:{path}")) as loader:
        next(loader)
    assert list((tmp_path / "tmp").iterdir()) == []
