"""Runs that wandb 0.31 wrote without a network and MLflow 3.17.2 wrote to its database and to files, as they stand.

Of MLflow's, the names of a user and of a folder were taken out.
"""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nsa_doctor.artifacts.training_run.reading import read_run
from nsa_doctor.core.finding import Decision
from tests.nsa_doctor.artifacts.training_run.runs import codes, watched

RECORDED = Path(__file__).parent / "recorded"


def wandb(folder: Path) -> Path:
    place = folder / "wandb" / "offline-run-20261130_121921-cffz1fc2"
    place.mkdir(parents=True)
    shutil.copy(RECORDED / "run-cffz1fc2.wandb", place)
    return folder / "wandb"


def database(folder: Path) -> Path:
    (folder / "mlflow.db").write_bytes(gzip.decompress((RECORDED / "mlflow.db.gz").read_bytes()))
    return folder / "mlflow.db"


def files(folder: Path) -> Path:
    shutil.copytree(RECORDED / "mlruns", folder / "mlruns")
    return folder / "mlruns"


@pytest.mark.parametrize("store", [wandb, database, files])
def test_what_they_wrote_is_read_and_let_through(store: Callable[[Path], Path], tmp_path: Path) -> None:
    place = store(tmp_path)
    record = read_run(place)
    assert [beat.step for beat in record.beats] == list(range(1, 61))
    for beat in record.beats:
        assert beat.loss is not None
        assert 0 <= beat.loss - 3.0 / beat.step**0.5 <= 0.02
        assert beat.grad_norm == pytest.approx(1.2 / beat.step**0.25)
    assert [beat.learning_rate for beat in record.beats] == [1e-3 if store is wandb else None] * 60
    report = watched(place)
    assert (codes(report), report.decision) == ([], Decision.GO)
