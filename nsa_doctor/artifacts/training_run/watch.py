"""`nsa-doctor watch`: a live or finished training run, read and judged, once or for as long as it goes on."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from nsa_doctor.artifacts.judging import judged
from nsa_doctor.artifacts.training_run.columns import MappingError, parse_mapping
from nsa_doctor.artifacts.training_run.facts import facts_of
from nsa_doctor.artifacts.training_run.reading import RunError, RunReader
from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.replay import Listener, RecomputeRequest, is_asked_for, with_steps_again
from nsa_doctor.artifacts.training_run.sessions import endings, is_over, sessions_of
from nsa_doctor.artifacts.training_run.status import Status, status_of
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core import registry
from nsa_doctor.core.errors import OptionError, UsageError
from nsa_doctor.core.finding import Finding, Report, Result
from nsa_doctor.core.registry import Entry, prefixes
from nsa_doctor.core.report_facts import environment
from nsa_doctor.core.reproduce import arguments

_MOST_SECONDS = 24 * 3600.0
_PATIENCE_WITH_RANKS = 10.0
_PATIENCE_AT_THE_END = 3.0
_SHARE_FOR_OTHERS = 4.0  # as long as judging took, times this, nothing is judged again


@dataclass(frozen=True, kw_only=True)
class WatchRequest:
    """Which run, how its columns are called, which checks, how often; `words` are the command's, to be given again.

    `recompute` has some steps of the run computed again.
    """

    place: Path
    entries: tuple[Entry, ...]
    mapping: Mapping[str, str] = field(default_factory=dict)
    every: float = 2.0
    words: tuple[str, ...] = ()
    recompute: RecomputeRequest | None = None


class Screen(Protocol):
    """Where a person follows a run."""

    def waiting(self, sentence: str) -> None:
        """There is nothing to read yet, or no longer."""
        ...

    def status(self, status: Status) -> None:
        """How it stands."""
        ...

    def found(self, finding: Finding) -> None:
        """Something is wrong that was not before."""
        ...


def watch_request(
    *,
    place: Path,
    maps: Sequence[str],
    select: str | None,
    ignore: str | None,
    every: float,
    recompute: RecomputeRequest | None = None,
) -> WatchRequest:
    """Check what `watch` was given; raises OptionError."""
    if not 0.1 <= every <= _MOST_SECONDS:
        raise OptionError(f"--every must be a number of seconds from 0.1 to {_MOST_SECONDS:g}, got {every:g}")
    try:
        mapping = parse_mapping(maps)
    except MappingError as error:
        raise OptionError(f"--map {error}") from error
    try:
        entries = registry.select(prefixes("--select", select), prefixes("--ignore", ignore), "full", "run")
    except ValueError as error:
        raise OptionError(str(error)) from error
    options = [("--map", word) for word in maps] + [("--select", select), ("--ignore", ignore)]
    words = [word for option, value in options if value is not None for word in (option, value)]
    return WatchRequest(
        place=place,
        entries=tuple(entries),
        mapping=mapping,
        every=every,
        recompute=recompute,
        words=arguments((str(place),), words),
    )


def watch(request: WatchRequest, listen: Listener = lambda text, done, total: None) -> Report:
    """The run as it stands now; raises UsageError when there is none to read. A KeyboardInterrupt ends it early."""
    start = time.perf_counter()
    try:
        record = RunReader(request.place, request.mapping).read()
    except RunError as error:
        raise UsageError(str(error)) from error
    is_interrupted = False
    if request.recompute is not None and is_asked_for(request.entries):
        try:
            record = with_steps_again(record, request.recompute, listen)
        except KeyboardInterrupt:
            is_interrupted = True
    report = _report(request, record, _judged(request, record), time.perf_counter() - start)
    return replace(report, interrupted=is_interrupted)


def follow(request: WatchRequest, screen: Screen, pause: Callable[[float], None] = time.sleep) -> Report:
    """The run at its end, each finding reported when it appears; a KeyboardInterrupt ends it early.

    Waits for a folder that does not exist yet. Raises UsageError for what will never be a run.
    """
    start = time.perf_counter()
    followed = _Followed(request, RunReader(request.place, request.mapping), screen)
    is_interrupted = False
    try:
        while not followed.look():
            pause(request.every)
    except KeyboardInterrupt:
        is_interrupted = True
        followed.catch_up()
    record = followed.record
    if record is None:
        record = RunRecord(folder=str(request.place), notes=("nothing of a run was seen there",))
    report = _report(request, record, followed.results, time.perf_counter() - start)
    return replace(report, interrupted=is_interrupted)


@dataclass
class _Followed:
    """What is known so far."""

    request: WatchRequest
    reader: RunReader
    screen: Screen
    record: RunRecord | None = None
    results: tuple[Result, ...] = ()
    _reported: set[tuple[str, str]] = field(default_factory=set)
    _judged_at: float = 0.0
    _cost: float = 0.0
    _is_behind: bool = False

    def look(self) -> bool:
        """Read and tell; whether the run is over and has been judged as it ended."""
        try:
            self.record = self.reader.read()
        except RunError as error:
            if error.is_final:
                raise UsageError(str(error)) from error
            self.screen.waiting(str(error))
            return False
        now = time.time()
        self.screen.status(status_of(self.record, now))
        is_due = time.perf_counter() >= self._judged_at + _SHARE_FOR_OTHERS * self._cost
        self._is_behind = not is_due
        return is_due and self._judge(self.record, now)

    def catch_up(self) -> None:
        """Judge what was read since, unless that takes longer than a person waits who asked for the end."""
        if self.record is not None and self._is_behind and self._cost < _PATIENCE_AT_THE_END:
            self._judge(self.record, time.time())

    def _judge(self, record: RunRecord, now: float) -> bool:
        begin = time.perf_counter()
        has_ended = _has_ended(record, now)
        self.results = _judged(self.request, record, now)
        self._judged_at, self._cost = time.perf_counter(), time.perf_counter() - begin
        for finding in (each for result in self.results for each in result.findings):
            if (key := (finding.code, finding.fingerprint)) not in self._reported:
                self._reported.add(key)
                self.screen.found(finding)
        return has_ended


def _has_ended(record: RunRecord, now: float) -> bool:
    """Whether every process has said that it ended, or one has and the others keep silent."""
    if not is_over(record):
        return False
    ended = endings(record)
    if not ended or len(ended) >= record.world_size:
        return True
    newest = max((beat.ts for beat in record.beats if beat.ts is not None), default=0.0)
    return now - newest > _PATIENCE_WITH_RANKS


def _judged(request: WatchRequest, record: RunRecord, now: float | None = None) -> tuple[Result, ...]:
    subject = RunSubject(
        name=record.folder, record=record, now=time.time() if now is None else now, options=request.words
    )
    return tuple(judged(request.entries, subject))


def _report(request: WatchRequest, record: RunRecord, results: tuple[Result, ...], seconds: float) -> Report:
    return Report(
        command="watch",
        subject={
            "name": str(request.place),
            "description": _description(record),
            "options": list(request.words),
            **({"identity": identity} if (identity := _identity(record)) else {}),
        },
        options={"map": dict(request.mapping)} if request.mapping else {},
        environment=environment({}),
        results=results,
        run=facts_of(record),
        notes=record.notes,
        seconds=seconds,
    )


def _identity(record: RunRecord) -> dict[str, str]:
    """Which run exactly, as it says itself."""
    facts = {name: record.environment.get(name) for name in ("configuration_hash", "version", "commit")}
    return {name: value[:200] for name, value in facts.items() if isinstance(value, str) and value}


def _description(record: RunRecord) -> str:
    """`step 200 of 200, 2 processes, finished, from heartbeat_rank0.jsonl`."""
    step = max((beat.step for beat in record.beats if beat.step is not None), default=None)
    total = record.declared("steps") or record.declared("max_steps")
    parts: list[str] = []
    if step is not None:
        parts.append(f"step {step:,}" + (f" of {total:,.0f}" if total else ""))
    if len(record.ranks) > 1:
        parts.append(f"{len(record.ranks)} processes")
    if (sessions := len(sessions_of(record))) > 1:
        parts.append(f"{sessions} sessions")
    ends = {end.kind for end in endings(record)}
    parts.append("ended early" if ends - {"finished"} else ("finished" if ends else "no word of an end"))
    if record.source:
        parts.append(f"from {record.source}")
    return ", ".join(parts)
