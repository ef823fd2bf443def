"""Logs of steps in the forms that trainers write: JSON lines, tables, one JSON document, torchtitan's console.

Read on as they grow.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nsa_doctor.artifacts.training_run.columns import Columns, beat_of, number, time_of, whole
from nsa_doctor.artifacts.training_run.growing_lines import Tail
from nsa_doctor.artifacts.training_run.record import Beat, Evaluation
from nsa_doctor.artifacts.training_run.store_error import StoreError
from nsa_doctor.artifacts.training_run.stores import is_store, rows_of, signature
from nsa_doctor.artifacts.training_run.torchtitan_log import TEXT_SUFFIXES, Console

_STORE = "store"
SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".json", *TEXT_SUFFIXES)
_LARGEST_DOCUMENT = 256 << 20
_SUMMARIES = frozenset({"train_runtime", "total_flos"})  # of a whole run, at the end of Hugging Face's history
_JOINED = ("ts", "loss", "tokens_per_second", "fetch_seconds", "grad_norm", "learning_rate", "memory")
_TRAINER_SETTINGS = ("max_steps", "save_steps", "logging_steps", "eval_steps", "num_train_epochs")


@dataclass
class Log:
    """One file of steps; `read` adds what is new. `rank` is the one that lines have that name none."""

    path: Path
    rank: int = 0
    mapping: Mapping[str, str] = field(default_factory=dict)
    beats: list[Beat] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    trainer: dict[str, float] = field(default_factory=dict)
    num_skipped: int = 0
    num_strange: int = 0
    num_unread: int = 0

    def __post_init__(self) -> None:
        self.tail, self.columns = Tail(self.path), Columns(self.mapping)
        self._form = _STORE if is_store(self.path) else self.path.suffix.lower()
        self._header: list[str] = []
        self._separator = ","
        self._console = Console()
        self._epoch = self._before = self._last_step = 0
        self._document: tuple[int, int] | None = None  # size and time of what was read

    @property
    def name(self) -> str:
        """The file's own."""
        return self.path.name

    @property
    def is_console(self) -> bool:
        """Whether it is text for people, of which most lines are of no step."""
        return self._form in TEXT_SUFFIXES

    @property
    def _is_table(self) -> bool:
        return self._form in (".csv", ".tsv")

    def read(self) -> bool:
        """Take in what was added since; whether anything changed."""
        if self._form == ".json":
            return self._read_document()
        if self._form == _STORE:
            return self._read_store()
        is_anew = self.tail.is_anew()
        if is_anew:
            self._forget()
        before = len(self.beats) + len(self.evaluations) + self.num_skipped
        parse = self._console.row if self.is_console else self._table_row if self._is_table else self._json_row
        for line in self.tail.lines():
            self._take(parse(line))
        self.trainer.update(self._console.settings)
        return is_anew or len(self.beats) + len(self.evaluations) + self.num_skipped != before

    def ending(self) -> tuple[list[Beat], int]:
        """The heartbeat in the last line, where it lacks its line break, and whether it is none: a line cut short."""
        rest = self.tail.rest
        if not rest.strip() or self._form in (".json", _STORE):
            return [], 0
        aside = Log(self.path, self.rank, self.mapping)
        aside._header, aside._separator = self._header, self._separator
        aside._epoch, aside._before, aside._last_step = self._epoch, self._before, self._last_step
        if self.is_console:
            aside._take(self._console.row_of_ending(rest))
        else:
            aside._take(aside._table_row(rest) if self._is_table and self._header else aside._json_row(rest))
        is_cut = self._is_table and len(rest.split(self._separator)) < len(self._header)
        return ([], 1) if is_cut else (aside.beats, aside.num_skipped)

    def notes(self) -> Iterator[str]:
        """What could not be read."""
        skipped = self.num_skipped + self.ending()[1]
        if skipped:
            counted = "1 line is" if skipped == 1 else f"{skipped:,} lines are"
            yield f"{self.name}: {counted} no heartbeat and left out"
        if self.num_strange:
            lines = "line names a step that is" if self.num_strange == 1 else "lines name a step that is"
            yield f"{self.name}: {self.num_strange:,} {lines} no whole number below 2^53, and is left out"
        if self.num_unread:
            lines = "line holds a loss that is" if self.num_unread == 1 else "lines hold a loss that is"
            yield f"{self.name}: {self.num_unread:,} {lines} no number, and is left out"
        if self.tail.trouble:
            yield f"{self.name}: {self.tail.trouble}"

    def _forget(self) -> None:
        self.tail.forget()
        for each in (self.beats, self.evaluations, self._header, self.trainer):
            each.clear()
        self._console = Console()
        self.num_skipped = self.num_strange = self.num_unread = self._epoch = self._before = self._last_step = 0

    def _take(self, row: Mapping[str, Any] | None) -> None:
        if row is None:
            self.num_skipped += 1
            return
        if not row:
            return
        found = self.columns.find(row)
        if not _SUMMARIES.isdisjoint(row):
            found.pop("loss", None)  # a mean over the whole run
            found["msg"] = "msg", "finished"
        beat = beat_of(self._counted(found), self.rank)
        self.num_unread += beat.loss is None and "loss" in found and _is_unread(found["loss"][1])
        loss = number(found["eval_loss"][1]) if "eval_loss" in found else None
        if loss is not None:
            self.evaluations.append(Evaluation(step=beat.step, loss=loss))
        if self.beats and (whole_one := _joined(self.beats[-1], beat)) is not None:
            self.beats[-1] = whole_one
        else:
            self.beats.append(beat)

    def _counted(self, found: dict[str, tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
        """With steps that go on where a log begins again with each epoch; by epochs or rows where it has none."""
        epoch = whole(number(found["epoch"][1])) if "epoch" in found else None
        if "step" not in found:
            if epoch is None and "loss" not in found:
                return found
            return {**found, "step": ("epoch", epoch if epoch is not None else len(self.beats) + 1)}
        step = whole(number(found["step"][1]))
        if step is None:
            self.num_strange += found["step"][1] is not None
            return found
        if epoch is not None and epoch > self._epoch and step + self._before < self._last_step:
            self._before = self._last_step
        self._epoch = self._epoch if epoch is None else epoch
        self._last_step = step + self._before
        return {**found, "step": ("step", self._last_step)}

    def _json_row(self, line: str) -> Mapping[str, Any] | None:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return flat(data) if isinstance(data, dict) else None

    def _table_row(self, line: str) -> Mapping[str, Any] | None:
        try:
            if not self._header:
                self._separator = max(",\t;", key=line.count)
            cells = next(csv.reader([line.replace("\0", "")], delimiter=self._separator), [])
        except csv.Error:
            return None
        names = [cell.strip() for cell in cells]
        if not self._header and self._are_values(names):
            self._header = _numbered(names)
            self.columns.note(self._header)
        elif not self._header or names == self._header:
            self._header = names
            self.columns.note(names)
            return {}
        row: dict[str, Any] = {}
        for name, cell in zip(self._header, cells, strict=False):
            if cell.strip():
                row.setdefault(name, cell.strip())
        return row or None

    def _are_values(self, cells: Sequence[str]) -> bool:
        """Whether the first line of a table names no columns: numbers and times alone, or columns are mapped by number.

        0, 1, 2 … are names, which some programs give to columns.
        """
        filled = [cell for cell in cells if cell]
        if not filled or filled == [str(index) for index in range(len(filled))]:
            return False
        if self.mapping and all(column.isdecimal() and column not in cells for column in self.mapping.values()):
            return True
        numbers = [cell for cell in filled if number(cell) is not None]
        return bool(numbers) and all(cell in numbers or time_of(cell) is not None for cell in filled)

    def _read_store(self) -> bool:
        """What a tracker has stored, all of it again where anything was added."""
        try:
            now = signature(self.path)
            if now == self._document:
                return False
            rows = rows_of(self.path)
        except OSError as error:
            self.tail.trouble = f"cannot be read: {error.strerror}"
            return False
        except StoreError as error:
            self.tail.trouble = str(error)
            return False
        self._forget()
        self._document = now
        for row in rows:
            self._take(row)
        return True

    def _read_document(self) -> bool:
        """One JSON document: a list of steps, or Hugging Face's trainer_state.json."""
        try:
            facts = self.path.stat()
            if (facts.st_size, facts.st_mtime_ns) == self._document:
                return False
            if not self.path.is_file() or facts.st_size > _LARGEST_DOCUMENT:
                self.tail.trouble = f"is not a file of at most {_LARGEST_DOCUMENT >> 20} MiB and was not read"
                return False
            data = json.loads(self.path.read_bytes())
        except OSError as error:
            self.tail.trouble = f"cannot be read: {error.strerror}"
            return False
        except (ValueError, RecursionError):
            self.tail.trouble = "is no JSON"  # or is being written
            return False
        self._forget()
        self._document = (facts.st_size, facts.st_mtime_ns)
        rows = _rows(data)
        if rows is None:
            self.tail.trouble = "holds no list of steps"
            return False
        if isinstance(data, dict):
            settings = {name: number(data.get(name)) for name in _TRAINER_SETTINGS}
            self.trainer.update({name: value for name, value in settings.items() if value is not None})
        for row in rows:
            self._take(flat(row) if isinstance(row, dict) else None)
        return True


def _is_unread(value: Any) -> bool:
    """Whether a loss was meant: dashes and the like stand for none."""
    return value is not None and value is not False and str(value).strip(" -_.").lower() not in ("", "na", "n/a", "nil")


def _joined(one: Beat, other: Beat) -> Beat | None:
    """Both as one, where a log tells a step in several lines, none of which says what another has said."""
    if one.step is None or one.step != other.step or one.rank != other.rank or one.msg or other.msg:
        return None
    values = {name: value for name in _JOINED if (value := getattr(other, name)) is not None}
    if any(getattr(one, name) is not None for name in values if name != "ts"):
        return None
    return replace(one, **values)


def flat(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object with what lies in objects inside it, one deep, as `outer/inner`."""
    if dict not in map(type, data.values()):
        return data
    made: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            made.update({f"{name}/{inner}": deeper for inner, deeper in value.items()})
        else:
            made[name] = value
    return made


def _numbered(cells: Sequence[str]) -> list[str]:
    """What the columns of a table without names are called: 1, 2, 3 …, as `cut -f` has them."""
    return [str(index) for index in range(1, len(cells) + 1)]


def _rows(data: Any) -> Iterable[Any] | None:
    """The list of steps in a document."""
    if isinstance(data, list):
        return data
    if isinstance(data, dict):
        return next(
            (data[name] for name in ("log_history", "history", "logs") if isinstance(data.get(name), list)), None
        )
    return None
