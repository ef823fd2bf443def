"""Reads a training run: a folder with `heartbeat_rank<N>.jsonl`, `training.csv` or another trainer's log, or one log.

Lines that are no heartbeat are counted and left out: the last one of a live or a killed run is often cut short. What
the folder holds is data from elsewhere: sizes are limited, and nothing in it is run.
"""

import contextlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsa.strict import plain
from nsa_doctor.artifacts.training_run import folder as beside
from nsa_doctor.artifacts.training_run.columns import MappingError
from nsa_doctor.artifacts.training_run.logs import SUFFIXES, Log
from nsa_doctor.artifacts.training_run.misleading import misleading
from nsa_doctor.artifacts.training_run.mlflow_database import is_database
from nsa_doctor.artifacts.training_run.readable import READABLE
from nsa_doctor.artifacts.training_run.record import Beat, Evaluation, RunRecord
from nsa_doctor.artifacts.training_run.stores import is_store, stores_below
from nsa_doctor.artifacts.training_run.torchtitan_log import TEXT_SUFFIXES

_HEARTBEATS = re.compile(r"heartbeat_rank(\d{1,6})\.jsonl")
_OF_A_RANK = re.compile(r".*rank[-_.]?(\d{1,6})\b.*\.(jsonl|ndjson|csv|tsv)")
_NO_LOGS = ("evaluations.csv", "gates.csv", "retrieval.csv")
_PLACES = ("", "logs", "log", "metrics", "csv_logs", "lightning_logs")
_PLACES_BELOW = ("version_*", "checkpoint-*")
_MOST_LOGS = 64
_MOST_STORES = 4
_MOST_NOTES = 4
_A_DATE = 946_684_800.0


class RunError(ValueError):
    """A folder or a file that holds no run that can be read; one sentence says why.

    `is_final`: it never will, whatever is written there.
    """

    def __init__(self, sentence: str, *, is_final: bool = False) -> None:
        super().__init__(sentence)
        self.is_final = is_final


def read_run(place: Path, mapping: Mapping[str, str] | None = None) -> RunRecord:
    """What the folder or the log shows; raises RunError when it is none, or holds nothing that a run writes.

    mapping: columns by quantity, as `parse_mapping` reads them, where they are not called as usual.
    """
    return RunReader(place, mapping).read()


class RunReader:
    """Reads one run again and again, what was read before left alone."""

    def __init__(self, place: Path, mapping: Mapping[str, str] | None = None) -> None:
        self._place, self._mapping = place, dict(mapping or {})
        self._logs: dict[Path, Log] = {}

    def read(self) -> RunRecord:
        """The run as it stands now; raises RunError."""
        try:
            if is_database(self._place) and (stored := self._stored()):
                notes: list[str] = []
                best = self._newest(stored, notes)
                return self._record([best], {}, notes, source=best.name)
            if is_store(self._place) or (self._place.is_file() and self._place.suffix.lower() in SUFFIXES):
                return self._of_file()
            if not self._place.is_dir():
                raise RunError(_no_folder(self._place), is_final=self._place.exists())
            names = sorted(path.name for path in self._place.iterdir())
        except OSError as error:
            raise RunError(f"{plain(str(self._place))}: cannot be read: {error.strerror}") from None
        return self._of_folder(names)

    def _of_file(self) -> RunRecord:
        log = self._log(self._place)
        log.read()
        if not _is_of_steps(log):
            self._check_mapping([log])
            why = "; ".join(log.notes()) or _no_step(log)
            raise RunError(_nothing_in(self._place, f"{why}{_hint(log)}"))
        return self._record([log], {}, [], source=log.name)

    def _of_folder(self, names: Sequence[str]) -> RunRecord:
        notes: list[str] = []
        logs = self._heartbeats(names)
        is_of_heartbeats = any(log.beats or log.ending()[0] for log in logs)
        unread = [note for log in logs for note in log.notes()]
        if not is_of_heartbeats:
            notes += unread
            logs = self._others(names, notes)
        environment = beside.facts_in(self._place / "env.json", notes) if "env.json" in names else {}
        if not logs and not environment:
            notes += [note for log in self._logs.values() for note in _why_unread(log) if note not in notes]
            raise RunError(_nothing_in(self._place, "; ".join(notes[:_MOST_NOTES])))
        source = ", ".join(log.path.relative_to(self._place).as_posix() for log in logs[:4])
        record = self._record(logs, environment, notes, source=source)
        has_sections = all(isinstance(record.configuration.get(name), dict) for name in ("train", "runtime"))
        is_own = is_of_heartbeats and has_sections and any(beat.msg == "step" for beat in record.beats)
        return _with_the_rest(replace(record, is_own=is_own), self._place, names)

    def _record(
        self, logs: Sequence[Log], environment: Mapping[str, Any], notes: list[str], *, source: str
    ) -> RunRecord:
        self._check_mapping(logs)
        beats = [beat for log in logs for beat in itertools.chain(log.beats, log.ending()[0])]
        is_clear = all(_HEARTBEATS.fullmatch(log.name) for log in logs) or not _is_no_clock(beats)
        if not is_clear:
            beats = [replace(beat, ts=None) for beat in beats]
        return RunRecord(
            folder=str(self._place),
            beats=tuple(beats),
            environment=environment,
            evaluations=tuple(each for log in logs for each in log.evaluations),
            trainer={name: value for log in logs for name, value in log.trainer.items()},
            notes=(*notes, *(note for log in logs for note in log.notes()), *misleading(beats)),
            source=source,
        )

    def _heartbeats(self, names: Iterable[str]) -> list[Log]:
        found = [(name, rank) for name in names if (rank := _HEARTBEATS.fullmatch(name))]
        logs = [self._log(self._place / name, int(rank[1])) for name, rank in found]
        for log in logs:
            log.read()
        return logs

    def _others(self, names: Sequence[str], notes: list[str]) -> list[Log]:
        """The log with the most losses, training.csv before all; with those of its other ranks."""
        if (own := next((name for name in names if name.lower() == "training.csv"), None)) is not None:
            log = self._log(self._place / own)
            log.read()
            if _is_of_steps(log):
                return [log]
            notes += log.notes()
        known = [path for path in self._logs if path.exists()]
        logs = [self._log(path) for path in dict.fromkeys((*known, *self._candidates()))]
        for log in logs:
            log.read()
        found = [log for log in logs if _is_of_steps(log)]
        if not found:
            stored = self._stored()
            return [self._newest(stored, notes)] if stored else []
        best = max(found, key=lambda log: sum(beat.loss is not None for beat in log.beats))
        if not (ranked := _OF_A_RANK.fullmatch(best.name)):
            self._tell_of_others(best, found, notes)
            return [best]
        shape = best.name.replace(ranked[1], "")
        return [
            log for log in found if (rank := _OF_A_RANK.fullmatch(log.name)) and log.name.replace(rank[1], "") == shape
        ]

    def _stored(self) -> list[Log]:
        """What trackers have stored below, the newest first, where no log is of steps."""
        with contextlib.suppress(OSError):
            logs = [self._log(path) for path in itertools.islice(stores_below(self._place), _MOST_STORES)]
            for log in logs:
                log.read()
            return [log for log in logs if _is_of_steps(log)]
        return []

    def _newest(self, stored: Sequence[Log], notes: list[str]) -> Log:
        """The newest run of them that has losses, if any has."""
        best = next((log for log in stored if any(beat.loss is not None for beat in log.beats)), stored[0])
        self._tell_of_others(best, stored, notes)
        return best

    def _tell_of_others(self, best: Log, found: Sequence[Log], notes: list[str]) -> None:
        above = self._place.parent if self._place.is_file() else self._place
        others = [log.path.relative_to(above).as_posix() for log in found if log is not best]
        if others:
            name = best.path.relative_to(above).as_posix()
            notes.append(f"{name} was read; {', '.join(others[:4])} may also be of steps: name one to have it read")

    def _candidates(self) -> list[Path]:
        places = [self._place / place for place in _PLACES]
        globs = [f"{place}/{below}" if place else below for place in _PLACES for below in _PLACES_BELOW]
        with contextlib.suppress(OSError):
            places += [path for each in globs for path in _newest_first(self._place.glob(each))[:4]]
        paths = [path / name for path in places for name in beside.listed(path)]
        wanted = [path for path in paths if path.suffix.lower() in SUFFIXES and path.name not in _NO_LOGS]
        documents = ("trainer_state.json", "log_history.json", "history.json")
        logs = [path for path in wanted if path.suffix.lower() != ".json" or path.name in documents]
        return sorted(logs, key=lambda path: path.suffix.lower() in TEXT_SUFFIXES)[:_MOST_LOGS]

    def _log(self, path: Path, rank: int | None = None) -> Log:
        if path not in self._logs:
            found = _OF_A_RANK.fullmatch(path.name)
            own = rank if rank is not None else (int(found[1]) if found else 0)
            self._logs[path] = Log(path, own, self._mapping)
        return self._logs[path]

    def _check_mapping(self, logs: Sequence[Log]) -> None:
        if not self._mapping or not any(log.columns.seen for log in logs):
            return
        seen = logs[0]
        for log in logs:
            for column in log.columns.seen:
                seen.columns.note([column])
        try:
            seen.columns.check(seen.name)
        except MappingError as error:
            raise RunError(f"--map {error}", is_final=True) from None


def _with_the_rest(record: RunRecord, folder: Path, names: Sequence[str]) -> RunRecord:
    saved = tuple(beside.saved_in(folder, names))
    notes: list[str] = []
    rows = beside.numbers_in(folder / "evaluations.csv") if "evaluations.csv" in names else ()
    evaluations = (
        Evaluation(step=int(row["step"]) if math.isfinite(row.get("step", math.nan)) else None, loss=row["loss"])
        for row in rows
        if "loss" in row
    )
    return replace(
        record,
        watchdog_dumps=tuple(name for name in names if name.startswith("watchdog_stackdump")),
        dumps=tuple(beside.dumps_in(folder, names)),
        checkpoints=tuple(each.name for each in saved if not each.fault.startswith(("is empty", "cannot", "was set"))),
        saved=saved,
        evaluations=tuple(evaluations) or record.evaluations,
        gates=tuple(beside.numbers_in(folder / "gates.csv")) if "gates.csv" in names else (),
        nonfinite=tuple(beside.nonfinite_in(folder, names)),
        failures=tuple(beside.failures_in(folder, names)),
        metrics=beside.facts_in(folder / "metrics.json", notes) if "metrics.json" in names else {},
        notes=(*record.notes, *notes),
    )


def _no_folder(place: Path) -> str:
    name = plain(str(place))
    if place.is_file():
        return f"{name}: is neither a folder nor a log ({', '.join(SUFFIXES)}); name {READABLE}"
    return f"{name}: {'is not a folder' if place.exists() else 'no such folder'}; name a run's own"


def _nothing_in(place: Path, reasons: str) -> str:
    why = f": {reasons}" if reasons else ""
    return f"{plain(str(place))}: holds nothing of a run that can be read{why}; name {READABLE}"


def _is_of_steps(log: Log) -> bool:
    """Whether it tells a loss or a step at all; of a console's, whether training starts there."""
    if log.is_console and log.beats:
        return True
    beats = itertools.chain(log.beats, log.ending()[0])
    return any(beat.loss is not None or beat.step is not None for beat in beats) or bool(log.evaluations)


def _why_unread(log: Log) -> list[str]:
    """What keeps a log from being one of steps, where nothing of it could not be read."""
    if found := list(log.notes()):
        return found
    if log.columns.seen:
        if not log.beats:
            return [f"{log.name}: has a header and no row yet"]
        return [f"{log.name}: has no column of a step or a loss{_hint(log)}"]
    if log.is_console and log.tail.num_lines:
        return [_no_step(log)]
    return [f"{log.name}: is empty"] if log.path.exists() else []


def _no_step(log: Log) -> str:
    return (
        f"{log.name}: has no line of a step as torchtitan prints it" if log.is_console else f"{log.name}: holds no step"
    )


def _hint(log: Log) -> str:
    names = [plain(name) for name in itertools.islice(log.columns.seen, 12)]
    return (
        f"; it has the columns {', '.join(names)}: say with --map which is the step and which the loss" if names else ""
    )


def _is_no_clock(beats: Sequence[Beat]) -> bool:
    """Whether what is called a time goes back and forth below all dates, as what each step took does."""
    times = [beat.ts for beat in beats if beat.ts is not None and math.isfinite(beat.ts)]
    if not times or max(times) >= _A_DATE:
        return False
    back = sum(after < before for before, after in itertools.pairwise(times))
    return back > len(times) // 20 or times[-1] <= times[0]


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    """By the number in their names."""
    numbered = [(int(found[1]) if (found := re.search(r"(\d{1,15})$", path.name)) else -1, path) for path in paths]
    return [path for _, path in sorted(numbered, reverse=True)]
