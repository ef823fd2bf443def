"""r020 checkpoint-does-not-resume

Reported: 001 asks that a checkpoint is saved after save_every steps; 003 lists --resume among what is built in.
Symptom: a run must save after save_every steps, and go on from there with --resume.
Cause: none is reported, and neither report shows a resume that was tried. Established here: a run that is stopped
    half-way and resumed ends with the very bytes of one that was not, weights, optimizer and losses; a save that is cut
    short leaves the checkpoint before it in use. Each part that a checkpoint can lack is planted: the optimizer's
    moments, the position in the data, the second half of a file, and the checkpoint itself.
Check: CKP104 on losses of steps made twice, TRN104 on a checkpoint that was not saved or is cut short.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nsa.train.failures import OutOfDataError
from nsa.train.schedule import learning_rate
from nsa_doctor.cases.case import found
from nsa_doctor.cases.record import Case, Plant

from .runs import finished, losses, written

_RUN: dict[str, Any] = {"steps": 20, "save_every": 8}
_STOPPED_AT = 14
_CHECKPOINT = "checkpoints/step_00000020"
_RATE = "nsa.train.loop.learning_rate"


def ends(step: int, train: Any) -> float:
    """The machine is taken away in the middle of a step."""
    if step == _STOPPED_AT:
        raise OutOfDataError("the machine was taken away")
    return learning_rate(step, train)


def two_lives(folder: Path, of_second: Mapping[str, Any], spoil: Callable[[Path], None] = lambda run: None) -> Path:
    """A run that ends after its first checkpoint, and goes on with `auto`."""
    spoil(written(folder, {_RATE: ends}, **_RUN))
    return written(folder, of_second, resume="auto", **_RUN)


def reproduce() -> None:
    with tempfile.TemporaryDirectory() as place:
        whole = written(Path(place) / "whole", **_RUN)
        resumed = two_lives(Path(place) / "resumed", {}, cut_short)
        logged = losses(finished(resumed))
        assert logged[-12:] == losses(finished(whole))[-12:], "the losses after a resume are others"
        for part in ("model", "optimizer", "rng"):
            name = f"{_CHECKPOINT}/{part}.safetensors"
            assert (whole / name).read_bytes() == (resumed / name).read_bytes(), f"{part} differs after a resume"
        names = sorted(path.name for path in (whole / "checkpoints").iterdir())
        assert names == [f"step_{step:08d}" for step in (8, 16, 20)], f"saved are {names}"


def cut_short(run: Path) -> None:
    """A save that a power cut ended: under its temporary name."""
    unfinished = run / "checkpoints" / ".step_00000013.tmp"
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(b"\0" * 100)


def without_moments(folder: Path) -> Sequence[str]:
    return ["watch", str(two_lives(folder, {"nsa.train.saving.load_optimizer_tensors": lambda *_: None}))]


def without_position(folder: Path) -> Sequence[str]:
    return ["watch", str(two_lives(folder, {"nsa.train.run.data_state": lambda *_: None}))]


def half_a_file(folder: Path) -> Sequence[str]:
    run = written(folder, **_RUN)
    file = run / _CHECKPOINT / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return ["watch", str(run)]


def never_saved(folder: Path) -> Sequence[str]:
    return ["watch", str(written(folder, {"nsa.train.loop.Loop._save": lambda *_: None}, **_RUN))]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="the optimizer's moments are left out",
            command=without_moments,
            expected=found("CKP104", says=r"step 10 lost \S+, and \S+ when it was made again after resume 1"),
        ),
        Plant(
            name="the position in the data is left out",
            command=without_position,
            expected=found("CKP104", says=r"step 9 lost \S+, and \S+ when it was made again after resume 1"),
        ),
        Plant(
            name="half a file",
            command=half_a_file,
            expected=found("TRN104", says=r"checkpoint of step 20 .*optimizer.safetensors"),
        ),
        Plant(
            name="nothing is saved",
            command=never_saved,
            expected=found("TRN104", says=r"checkpoint of step 8 and 16 was not saved"),
        ),
    ),
)
