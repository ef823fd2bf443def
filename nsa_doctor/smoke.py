"""`nsa-doctor smoke`: a short training run that is killed half-way and resumed, for a verdict to look at."""

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

from nsa_doctor.laboratory import UsageError
from nsa_doctor.output import CannotWriteError
from nsa_doctor.signals import raise_if_interrupted

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


def train(request: SmokeRequest, say: Say) -> str:
    """Train, kill it after the half-way checkpoint, go on from there; the sentence it ended with, if it failed.

    Raises UsageError with the trainer's own sentence when it refuses what it is asked, and KeyboardInterrupt.
    """
    was_killed, sentence = _one_life(request, resume=False, until=request.interrupted_at + _STEPS_MADE_TWICE)
    if not was_killed:
        return sentence or "the run ended before it could be interrupted and resumed"
    say(f"killed after the checkpoint of step {request.interrupted_at}; going on from there")
    return _one_life(request, resume=True, until=None)[1]


def _one_life(request: SmokeRequest, *, resume: bool, until: int | None) -> tuple[bool, str]:
    """Whether it was killed at its `until`, and the sentence it failed with."""
    words = [sys.executable, "-m", "nsa.train", "--config", str(request.config), *(["--resume", "auto"] * resume)]
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(  # noqa: S603 (our own interpreter)
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if request.quiet else _ERRORS,
            stderr=errors,
            start_new_session=True,
        )
        try:
            fate = _watch(child, request, until)
        finally:
            _end(child)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _LONGEST_TAIL))
        told = errors.read().decode("utf-8", errors="replace").strip().splitlines()
    sentence = told[-1].removeprefix("nsa.train: ") if told else f"the trainer ended with exit code {child.returncode}"
    if fate == "reached":
        return True, ""
    if fate == "silent":
        return False, f"the trainer was ended because it told nothing for {request.patience:g} s"
    if child.returncode == _REFUSED:
        raise UsageError(sentence)
    return False, "" if child.returncode == 0 else sentence


def _watch(child: subprocess.Popen[bytes], request: SmokeRequest, until: int | None) -> str:
    """How it came to its end: `ended` by itself, `reached` the step, or `silent` for too long."""
    heard, size, beats = time.monotonic(), -1, request.folder / "heartbeat_rank0.jsonl"
    while child.poll() is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        raise_if_interrupted()
        step, now_size = _last_step(beats)
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


def _last_step(beats: Path) -> tuple[int, int]:
    """The step of the last whole line, 0 if there is none, and how long the file is."""
    try:
        with beats.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LONGEST_TAIL))
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
