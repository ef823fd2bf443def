"""`nsa-doctor smoke`: a short training run that is killed half-way, resumed, asked to stop, and resumed again."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.signals import raise_if_interrupted
from nsa_doctor.core.writing import CannotWriteError

FEWEST_STEPS = 10
_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_TO_START = 300.0  # torch, the first rows of a data set, an evaluation
_SECONDS_TO_COMPILE = 1800.0
_SECONDS_TO_END = 20.0
_STEPS_MADE_TWICE = 3
_REFUSED = 2
_LONGEST_TAIL = 65_536
_ERRORS = 2  # our own standard error, where progress goes

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class SmokeRequest:
    """What to train and where: `config` is a file that says all of it, `folder` does not hold a run yet.

    A trainer that is silent for longer than `patience` seconds is ended.
    """

    config: Path
    folder: Path
    steps: int
    patience: float
    quiet: bool = False
    is_compiled: bool = False

    @property
    def interrupted_at(self) -> int:
        """The step that is saved before the run is killed."""
        return self.steps // 2

    @property
    def beats(self) -> Path:
        """Where the trainer tells what it does."""
        return self.folder / "heartbeat_rank0.jsonl"


@dataclass(frozen=True, kw_only=True)
class _Session:
    """How a process of the trainer is begun, and the signal it gets once it has made a step."""

    resume: bool = True
    until: int | None = None
    ends_by: signal.Signals = signal.SIGKILL


def train(request: SmokeRequest, say: Say) -> str:
    """Train, in three sessions; the sentence it ended with, if it failed.

    The first is killed after the half-way checkpoint. The second goes on from there and is asked to stop, so that it
    saves a few steps later; between these two checkpoints steps can be computed again. The third goes to the end.
    Raises UsageError with the trainer's own sentence when it refuses what it is asked, and KeyboardInterrupt.
    """
    saved = request.interrupted_at
    was_killed, sentence = _lived(request, _Session(resume=False, until=saved + _STEPS_MADE_TWICE))
    if not was_killed:
        return sentence or "the run ended before it could be interrupted and resumed"
    say(f"killed after the checkpoint of step {saved}; going on from there")
    was_stopped, sentence = _lived(request, _Session(until=saved + 1, ends_by=signal.SIGTERM))
    if not was_stopped:
        return sentence
    say(f"stopped after step {_last_step(request.beats)[0]}; going on from there")
    return _lived(request, _Session())[1]


def _lived(request: SmokeRequest, session: _Session) -> tuple[bool, str]:
    """Whether it ended by the signal it got at its `until`, and the sentence it failed with."""
    begin = max(_last_step(request.beats)[1], 0)
    words = [
        sys.executable,
        "-m",
        "nsa.train",
        "--config",
        str(request.config),
        *(["--resume", "auto"] * session.resume),
    ]
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(  # noqa: S603 (our own interpreter)
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if request.quiet else _ERRORS,
            stderr=errors,
            start_new_session=True,
        )
        try:
            fate = _watch(child, request, session.until, begin)
            if fate == "reached" and session.ends_by != signal.SIGKILL:
                child.send_signal(session.ends_by)
                fate = "stopped" if _watch(child, request, None, begin) == "ended" else "silent"
        finally:
            _end(child)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _LONGEST_TAIL))
        lines = errors.read().decode("utf-8", errors="replace").strip().splitlines()
    sentence = (
        lines[-1].removeprefix("nsa.train: ") if lines else f"the trainer ended with exit code {child.returncode}"
    )
    if fate == "reached" or (fate == "stopped" and child.returncode == 128 + session.ends_by.value):
        return True, ""
    if fate == "stopped" and child.returncode < 0:
        return False, f"the trainer died of the {session.ends_by.name} that should have let it save"
    if fate == "silent":
        return False, f"the trainer was killed after {request.patience:g} s without a heartbeat"
    if child.returncode == _REFUSED:
        raise UsageError(sentence)
    return False, "" if child.returncode == 0 else sentence


def _watch(child: subprocess.Popen[bytes], request: SmokeRequest, until: int | None, begin: int) -> str:
    """How it came to its end: `ended` by itself, `reached` the step, or `silent` for too long.

    What the heartbeats' file held before, up to `begin`, is of earlier sessions.
    """
    heard, size = time.monotonic(), -1
    while child.poll() is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        raise_if_interrupted()
        step, now_size = _last_step(request.beats, begin)
        if until is not None and step >= until:
            return "reached"
        if now_size != size:
            heard, size = time.monotonic(), now_size
        patience = request.patience if step else max(request.patience, _SECONDS_TO_START)
        if request.is_compiled:
            patience = max(patience, _SECONDS_TO_COMPILE)
        if time.monotonic() - heard > patience:
            return "silent"
    return "ended"


def _last_step(beats: Path, begin: int = 0) -> tuple[int, int]:
    """The step of the last whole line behind `begin`, 0 if there is none, and how long the file is."""
    try:
        with beats.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - _LONGEST_TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return 0, -1
    for line in reversed(lines):
        try:
            step = json.loads(line).get("step")
        except (ValueError, AttributeError):
            continue
        if isinstance(step, int):
            return step, size
    return 0, size


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave no process behind: killed at once, as a machine that fails does it."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        raise CannotWriteError(f"the trainer (process {child.pid}) cannot be ended") from None
