"""Documents of a dataset, shard by shard, all read through one library: `datasets`, streaming.

A shard is a local file or one of the hub's; its examples have a fixed order, so that a shard and a number are a place.
"""

import glob
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nsa.config import DataConfig
from nsa.data.errors import Blame, DataError
from nsa.data.files import fingerprint, first_bad_line, local_files
from nsa.strict import plain, shown

FINEWEB_EDU = "HuggingFaceFW/fineweb-edu"

Example = Mapping[str, Any]


@dataclass(frozen=True)
class Document:
    """A text and how an error calls it."""

    text: str
    name: str


@dataclass(frozen=True)
class Shard:
    """One file: `read(start)` gives its examples from number `start` on."""

    name: str
    read: Callable[[int], Iterable[Example]]
    to_text: Callable[[Example, str], str | None]
    counted: str  # line, paragraph, file or row
    file: Path | None = None

    def documents(self, start: int) -> Iterator[tuple[int, Document | None]]:
        """(number, document) for each example from `start` on; None for one without text."""
        examples: Iterator[Example] = iter(())
        with Blame("open", self.name):
            examples = iter(self.read(start))
        number = start
        while True:
            try:
                with Blame("read", self.name):
                    example = next(examples, None)
            except DataError as error:
                raise self._with_line(error) from error.__cause__
            if example is None:
                return
            name = f"{self.name}, {self.counted} {number + 1}"
            text = self.to_text(example, name)
            yield number, Document(text, name) if text else None
            number += 1

    def _with_line(self, error: DataError) -> DataError:
        if self.file is None or not isinstance(error.__cause__, UnicodeDecodeError):
            return error
        with Blame("read", self.name):
            return DataError(f"{self.name}: {first_bad_line(self.file)} (stage read)")


@dataclass(frozen=True)
class Dataset:
    """`shards()` lists the shards, over the network where they lie there; `fingerprint` is of local files alone."""

    name: str
    shards: Callable[[], tuple[Shard, ...]] = field(repr=False)
    fingerprint: str


def open_dataset(data: DataConfig) -> Dataset:
    """What `data.dataset` names; local files are looked at, and nothing is read."""
    with Blame("open", data.dataset):
        import datasets  # of the extra `train`

        datasets.disable_progress_bars()  # they would draw into a run's log
        datasets.utils.tqdm.monitor_interval = 0  # and each run a thread that stays
    if data.kind == "fineweb_edu":
        name = f"{FINEWEB_EDU}{f', {data.subset}' if data.subset else ''}"
        return Dataset(name, partial(_hub_shards, FINEWEB_EDU, data), "")
    files = local_files(data.kind, data.path)
    shards = tuple(_local_shard(data, file) for file in files)
    return Dataset(data.dataset, lambda: shards, fingerprint(files))


def _local_shard(data: DataConfig, file: Path) -> Shard:
    text_field = data.text_field or "text"
    name = plain(str(file))
    match data.kind:
        case "text":
            by = data.text_by or "paragraph"
            return Shard(name, partial(_read_text, file, by), partial(_text_of, field="text"), by, file)
        case "jsonl":
            return Shard(
                name, partial(_read_text, file, "line"), partial(_text_of_json, field=text_field), "line", file
            )
    return Shard(name, partial(_read_parquet, file, text_field), partial(_text_of, field=text_field), "row", file)


def _read_text(file: Path, by: str, start: int) -> Iterable[Example]:
    from datasets import Dataset as Library

    with tempfile.TemporaryDirectory() as cache:  # for the lock that the library takes while it looks at the file
        sample_by = "document" if by == "file" else by
        opened = Library.from_text(
            _literal(file), streaming=True, cache_dir=cache, encoding="utf-8-sig", sample_by=sample_by
        )
    return opened.skip(start)


def _read_parquet(file: Path, text_field: str, start: int) -> Iterable[Example]:
    from datasets import Dataset as Library
    from pyarrow.parquet import read_schema

    names = read_schema(file).names  # reported here, because the library logs what it cannot read
    if text_field not in names:
        raise DataError(f"{plain(str(file))}: {_no_such_field(text_field, names)}")
    with tempfile.TemporaryDirectory() as cache:
        opened = Library.from_parquet(_literal(file), streaming=True, cache_dir=cache, columns=[text_field])
    return opened.skip(start)


def _hub_shards(repository: str, data: DataConfig) -> tuple[Shard, ...]:
    from datasets import load_dataset

    text_field = data.text_field or "text"
    with Blame("open", repository):
        opened = load_dataset(repository, data.subset, split="train", streaming=True, columns=[text_field])
    count = opened.num_shards

    def read(index: int, start: int) -> Iterable[Example]:
        return opened.shard(count, index).skip(start)

    return tuple(
        Shard(
            f"{repository}, shard {index + 1} of {count}",
            partial(read, index),
            partial(_text_of, field=text_field),
            "row",
        )
        for index in range(count)
    )


def _literal(file: Path) -> str:
    return glob.escape(str(file.absolute()))


def _text_of(example: Example, name: str, *, field: str) -> str | None:
    if field not in example:
        raise DataError(f"{name}: {_no_such_field(field, example)}")
    text = example[field]
    if text is not None and not isinstance(text, str):
        raise DataError(f"{name}: field {plain(field)} must be text, got {shown(text)}")
    return text


def _text_of_json(example: Example, name: str, *, field: str) -> str | None:
    line = example["text"]
    if not line.strip():
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: is no JSON: {plain(str(error)[:160])}") from None
    if not isinstance(value, dict):
        raise DataError(f"{name}: must be a JSON object with a field {plain(field)}, got {shown(value)}")
    return _text_of(value, name, field=field)


def _no_such_field(field: str, names: Iterable[str]) -> str:
    listed = ", ".join(plain(str(name)) for name in list(names)[:10]) or "none"
    return f"has no field {plain(field)}; its fields are {listed}: name one as data.text_field"
