"""Short real runs of the trainer, healthy or with a seam of it made faulty, for cases that are about runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nsa.config import as_document, load_config, with_changes
from nsa_doctor.artifacts.training_run.reading import read_run
from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.watch import watch, watch_request
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.training_runs import document_of, live

QUIET: dict[str, Any] = {"log_every": 50, "eval_every": 0, "eval_batches": 0, "sample_tokens": 0, "save_every": 0}
WARM_UP: dict[str, Any] = {
    name: getattr(load_config("m7c_125m_fast_log").train, name) for name in ("lr", "warmup_steps")
}


def written(
    folder: Path,
    seams: Mapping[str, Any] | None = None,
    *,
    nsa: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    runtime: Mapping[str, Any] | None = None,
    resume: str | None = None,
    **train: Any,
) -> Path:
    """The folder of a run that was made with these names of `nsa` replaced; how it ended is in there."""
    document = document_of(folder / "run", model=model, runtime=runtime, **QUIET | train)
    document["nsa"] = document["nsa"] | dict(nsa or {})
    document["data"] = document["data"] | dict(data or {})
    live(document, seams or {}, resume=resume)
    return folder / "run"


def finished(run: Path) -> RunRecord:
    """What a run shows; raises AssertionError where it did not come to its end."""
    record = read_run(run)
    last = record.beats[-1].msg if record.beats else "nothing was written"
    assert last == "finished", f"the run did not finish: {last}"
    return record


def losses(record: RunRecord) -> list[float]:
    """Of all steps, in their order."""
    return [beat.loss for beat in record.steps if beat.loss is not None]


def seen_by_watch(run: Path) -> Sequence[Finding]:
    """What `nsa-doctor watch` finds in a folder."""
    return watch(watch_request(place=run, maps=(), select=None, ignore=None, every=2.0)).findings


def of_config(folder: Path, name: str, steps: int) -> Path:
    """The folder of a run of a built-in configuration, for so many steps."""
    changes = [f"train.out_dir='{folder / 'run'}'", f"train.steps={steps}", "train.warmup_steps=0"]
    changes += [f"train.{key}={value}" for key, value in QUIET.items()]
    live(as_document(with_changes(load_config(name), [*changes, "runtime.device=cpu"])), {})
    return folder / "run"
