"""`nsa-doctor gate-stats`: what checkpoints say of their gates, and whether the files are sound."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast, get_args

from nsa_doctor.artifacts.checkpoint.fault import USAGE
from nsa_doctor.artifacts.checkpoint.judging import judged, judged_together
from nsa_doctor.artifacts.checkpoint.patterns import wrong_pattern
from nsa_doctor.artifacts.checkpoint.reader import ReadRequest, read_checkpoint
from nsa_doctor.artifacts.checkpoint.record import Activation, GateRecord, Reading
from nsa_doctor.core.errors import OptionError, UsageError
from nsa_doctor.core.finding import Report, Result
from nsa_doctor.core.nearest import one_of
from nsa_doctor.core.report_facts import environment
from nsa_doctor.core.reproduce import SECONDS, arguments
from nsa_doctor.core.text import short_bytes

Listener = Callable[[str, int, int], None]
_LARGEST_SEED = 2**32 - 1
_MOST_BRANCHES = 64
_MOST_SECONDS = 7 * 24 * 3600.0
_MOST_FILES = 1000
_SHOWN_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class GateStatsRequest:
    """Checkpoints in the order of their training, what to look for in each, and the words that say so again."""

    paths: tuple[str, ...]
    read: ReadRequest
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What is known of some checkpoints: the end of every check, each file read, each gate as a report has it."""

    results: tuple[Result, ...]
    readings: tuple[Reading, ...]
    gates: tuple[Mapping[str, Any], ...]
    interrupted: bool = False


def stats_request(
    *,
    files: Sequence[str],
    pattern: str | None,
    num_branches: int,
    activation: str | None,
    seed: int,
    timeout: float,
) -> GateStatsRequest:
    """Check what `gate-stats` was given; raises OptionError."""
    if len(files) > _MOST_FILES:
        raise OptionError(f"FILE may be given {_MOST_FILES} times, got {len(files)}")
    if not 2 <= num_branches <= _MOST_BRANCHES:
        raise OptionError(f"--num-branches must be from 2 to {_MOST_BRANCHES}, got {num_branches}")
    if activation is not None:
        one_of("--activation", activation, get_args(Activation))
    if not 0 <= seed <= _LARGEST_SEED:
        raise OptionError(f"--seed must be from 0 to {_LARGEST_SEED}, got {seed}")
    if not 0 < timeout <= _MOST_SECONDS:
        raise OptionError(f"--timeout must be a number of seconds above 0 and up to {_MOST_SECONDS:g}, got {timeout:g}")
    if (wrong := wrong_pattern(pattern)) is not None:
        raise OptionError(f"--pattern {pattern!r} is neither a glob nor a regular expression: {wrong}")
    given = {
        "--pattern": (pattern, None),
        "--num-branches": (num_branches, 3),
        "--activation": (activation, None),
        "--seed": (seed, 0),
        "--timeout": (timeout, SECONDS["gate-stats"]),
    }
    words = [word for option, (value, usual) in given.items() if value != usual for word in (option, f"{value}")]
    read = ReadRequest(
        pattern=pattern,
        num_branches=num_branches,
        activation=cast(Activation | None, activation),
        seed=seed,
        seconds=timeout,
    )
    return GateStatsRequest(paths=tuple(files), read=read, words=tuple(words))


def gate_stats(request: GateStatsRequest, listen: Listener = lambda text, done, total: None) -> Report:
    """Read and judge; a KeyboardInterrupt ends it early and keeps what was found.

    Raises UsageError for what is no checkpoint at all, and InternalError when the doctor's code fails.
    """
    start = time.perf_counter()
    examined = examine_checkpoints(request, listen)
    for reading in examined.readings:
        if reading.fault in USAGE:
            raise UsageError(reading.sentence)
    several = len(request.paths) > 1
    return Report(
        command="gate-stats",
        subject={
            "name": f"{len(request.paths)} checkpoints" if several else request.paths[0],
            "description": "; ".join(_description(reading, several) for reading in examined.readings),
            "options": list(request.paths),
            "files": [_file(reading) for reading in examined.readings],
            **({} if several else {"identity": _identity(examined.readings)}),
        },
        options={
            "seed": request.read.seed,
            "pattern": request.read.pattern,
            "num_branches": request.read.num_branches,
            "activation": request.read.activation,
            "timeout_seconds": request.read.seconds,
        },
        environment=environment({}),
        results=examined.results,
        gates=examined.gates,
        notes=tuple(_notes(examined.readings, several)),
        seconds=time.perf_counter() - start,
        interrupted=examined.interrupted,
    )


def examine_checkpoints(request: GateStatsRequest, listen: Listener = lambda text, done, total: None) -> Examined:
    """Every check of checkpoints on every file, each file compared with the one before it.

    Raises InternalError when the doctor's code fails.
    """
    readings: list[Reading] = []
    interrupted = False
    try:
        for path in request.paths:
            since = readings[-1].path if readings and readings[-1].fault is None else None
            readings.append(read_checkpoint(path, request.read, since))
            listen(path, len(readings), len(request.paths))
    except KeyboardInterrupt:
        interrupted = True
    words = arguments(request.paths, request.words)
    return Examined(
        results=judged_together([judged(reading, words) for reading in readings]),
        readings=tuple(readings),
        gates=tuple(_row(gate, reading) for reading in readings for gate in reading.gates),
        interrupted=interrupted,
    )


def _row(gate: GateRecord, reading: Reading) -> dict[str, Any]:
    return {"checkpoint": reading.path, "verdict": gate.verdict, "illnesses": list(gate.illnesses), **asdict(gate)}


def _identity(readings: Sequence[Reading]) -> dict[str, str]:
    """Which file exactly a verdict is bound to."""
    return {"file": readings[0].path, "sha256": readings[0].sha256} if readings else {}


def _file(reading: Reading) -> dict[str, Any]:
    """What is known of a file, its gates apart."""
    facts = asdict(reading)
    del facts["gates"], facts["shapes"]
    return facts


def _description(reading: Reading, has_name: bool) -> str:
    name = f"{reading.path}: " if has_name else ""
    if reading.fault is not None:
        return f"{name}not read"
    tensors = f"{reading.num_tensors:,} tensor{'' if reading.num_tensors == 1 else 's'}"
    digest = f", sha256 {reading.sha256[:_SHOWN_DIGITS]}" if reading.sha256 else ""
    return f"{name}{reading.kind}, {tensors}, {short_bytes(reading.num_bytes)}{digest}"


def _notes(readings: Iterable[Reading], has_name: bool) -> Iterable[str]:
    for reading in readings:
        yield from (f"{reading.path}: {note}" if has_name else note for note in reading.notes)
