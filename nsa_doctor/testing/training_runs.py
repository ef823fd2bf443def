"""Training runs of seconds, healthy or with a seam of the trainer made faulty, for injected bugs of checks of runs."""

import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from nsa_doctor.artifacts.training_run.reading import read_run
from nsa_doctor.artifacts.training_run.subject import RunSubject

_MODEL = {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16, "vocab_size": 256}
_NSA = {"l": 8, "d": 4, "l_sel": 8, "n_sel": 3, "w": 16}
_TRAIN = {
    "steps": 80,
    "seq_len": 64,
    "batch_size": 8,
    "lr": 2e-2,
    "warmup_steps": 8,
    "grad_clip": 1.0,
    "log_every": 10,
    "eval_every": 20,
    "save_every": 40,
    "sample_tokens": 4,
}


def trained(
    *,
    seams: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    runtime: Mapping[str, Any] | None = None,
    seams_of_sessions: Sequence[Mapping[str, Any]] = (),
    spoil: Callable[[Path], None] = lambda folder: None,
    seconds_later: float = 0.0,
    is_computed_again: bool = False,
    **changes: Any,
) -> RunSubject:
    """A run of seconds on synthetic data, as its folder shows it; what ends it early is in the folder too.

    seams: what to put in place of names of `nsa`, such as `nsa.train.loop.learning_rate`. model, runtime, changes:
    values of the configuration's sections, the last of `train`. seams_of_sessions: further seams of each of the run's
    sessions, of which all but the first are resumed. spoil: what happens to the folder afterwards. seconds_later: how
    long after it is looked at. is_computed_again: whether some of its steps are.
    """
    with TemporaryDirectory(prefix="nsa-doctor-") as place:
        folder = Path(place) / "run"
        document = document_of(folder, model=model, runtime=runtime, **changes)
        for number, of_session in enumerate(seams_of_sessions or ({},)):
            live(document, {**(seams or {}), **of_session}, resume="auto" if number else None)
        spoil(folder)
        subject = seen(folder, seconds_later)
        return _with_steps_again(subject, folder) if is_computed_again else subject


def _with_steps_again(subject: RunSubject, folder: Path) -> RunSubject:
    from nsa_doctor.artifacts.training_run.replay_steps import steps_again  # torch, which reading a run does without

    evaluated = [each.step for each in subject.record.evaluations if each.step is not None]
    return replace(subject, record=replace(subject.record, replay=steps_again(folder, evaluated)))


def document_of(
    folder: Path, *, model: Mapping[str, Any] | None = None, runtime: Mapping[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """The configuration of a run of seconds."""
    return {
        "model": _MODEL | dict(model or {}),
        "nsa": _NSA,
        "data": {"dataset": "synthetic", "tokenizer": "byte"},
        "train": _TRAIN | {"out_dir": str(folder)} | changes,
        "runtime": {"device": "cpu"} | dict(runtime or {}),
    }


def live(document: Mapping[str, Any], seams: Mapping[str, Any], resume: str | None = None) -> None:
    """One session of a run; what ends it early is in its folder."""
    from nsa.config import parse_config
    from nsa.train import TrainError, train

    with ExitStack() as stack:
        for name, faulty in {"nsa.train.results.draw": lambda *_: None, **seams}.items():
            stack.enter_context(patch(name, faulty))
        with suppress(TrainError), redirect_stdout(io.StringIO()):
            train(parse_config(document), resume=resume)


def seen(folder: Path, seconds_later: float = 0.0) -> RunSubject:
    """What the folder shows, so long after."""
    return RunSubject(name="it", record=read_run(folder), now=time.time() + seconds_later, options=("it",))
