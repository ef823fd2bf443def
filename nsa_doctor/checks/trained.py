"""What checks of runs have in common: short training runs, healthy or with a seam of the trainer made sick."""

import io
import time
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from nsa_doctor.runs.reading import read_run
from nsa_doctor.runs.subject import RunSubject

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
}


def trained(
    *,
    seams: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    runtime: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunSubject:
    """A run of seconds on synthetic data, as its folder shows it; what ends it early is in the folder too.

    seams: what to put in place of names of `nsa`, such as `nsa.train.loop.learning_rate`. model, runtime, changes:
    values of the configuration's sections, the last of `train`.
    """
    from nsa.config import parse_config
    from nsa.train import TrainError, train

    with TemporaryDirectory(prefix="nsa-doctor-") as place, ExitStack() as stack:
        folder = Path(place) / "run"
        for name, sick in {"nsa.train.results.draw": lambda *_: None, **(seams or {})}.items():
            stack.enter_context(patch(name, sick))
        document = {
            "model": _MODEL | dict(model or {}),
            "nsa": _NSA,
            "data": {"dataset": "synthetic", "tokenizer": "byte"},
            "train": _TRAIN | {"out_dir": str(folder)} | changes,
            "runtime": {"device": "cpu"} | dict(runtime or {}),
        }
        with suppress(TrainError), redirect_stdout(io.StringIO()):
            train(parse_config(document))
        return RunSubject(name="it", record=read_run(folder), now=time.time(), options=("it",))
