"""r013 loader-stall

Waits are of 1 s; with the limit that was added: `nsa-doctor data --ranks 1 --timeout 120 --subject
nsa_doctor.regressions.r013_loader_stall:loader`.

Reported: 001 and 003, of FineWeb-Edu, streamed; the limit that was added is 120 s.
Symptom: the first batch is late or never comes, and nothing says so; when all is well it takes 11 to 15 s.
Cause: reported as streaming without a limit. Which read it was, and whether it would have come back, nobody wrote
    down. Established here, with a stream that gives one document and then nothing: a loader that is read in the
    thread that trains can say nothing while it waits, and the run stands still for as long as the stream does. So a
    thread reads ahead, the wait for it ends after data.limit_seconds (120 by default) with the stage and the file it
    is at, and the run leaves its stacks before it ends.
Check: DAT104 on the loader, with the line that waits; TRN102 on the run, with stage, file and line.
"""

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nsa.config import load_config, with_changes
from nsa.data import LoaderStalledError, open_loader
from nsa.data.documents import FINEWEB_EDU
from nsa_doctor.artifacts.training_run.reading import read_run
from nsa_doctor.cases.case import found, raised
from nsa_doctor.cases.record import Case, Plant

from .runs import written
from .streams import OPENED, streamed

_SECONDS, _DEFAULT = 1.0, 120.0
_HERE = Path(__file__).name
_DATA: dict[str, Any] = {"dataset": "fineweb_edu", "limit_seconds": _SECONDS}
_BYTES = ("data.tokenizer=byte", "data.heldout_every=1000000")
_never = threading.Event()


def stalls() -> Iterator[str]:
    """A connection that gives a document and then says nothing."""
    yield "The first one came."
    _never.wait()


_AT_ONCE = ("nsa.data.feeder._FAREWELL_SECONDS", 0.05)  # not to wait for a thread that never ends
_SEAMS = {OPENED: streamed(stalls), _AT_ONCE[0]: _AT_ONCE[1]}


def reproduce() -> None:
    config = load_config("m7c_125m_fast_log")
    assert config.data.limit_seconds == _DEFAULT, "a batch has another limit"
    with patch(OPENED, streamed(stalls)), patch(*_AT_ONCE):
        loader, began = open_loader(with_changes(config, _BYTES), limit_seconds=_SECONDS), time.monotonic()
        error = raised(LoaderStalledError, lambda: next(loader))
        waited = time.monotonic() - began
        with tempfile.TemporaryDirectory() as place:
            record = read_run(written(Path(place), steps=2, data=_DATA))
    assert error is not None, "a batch came"
    assert (error.stage, error.source) == ("read", f"{FINEWEB_EDU}, shard 1 of 1"), str(error)
    assert _SECONDS <= waited < 5 * _SECONDS, f"the wait for a batch ended after {waited:.1f} s"
    assert "no batch came within 1 s" in record.beats[-1].msg, record.beats[-1].msg
    assert record.dumps, "the run left no stacks"


def loader(rank: int = 0, world_size: int = 1) -> Any:
    patch(OPENED, streamed(stalls)).start()
    return open_loader(with_changes(load_config("m7c_125m_fast_log"), _BYTES), rank=rank, world_size=world_size)


def looked_at(folder: Path) -> Sequence[str]:
    return ["data", "--subject", f"{__name__}:loader", "--ranks", "1", "--timeout", f"{_SECONDS:g}"]


def in_a_run(folder: Path) -> Sequence[str]:
    return ["watch", str(written(folder, _SEAMS, steps=2, data=_DATA))]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="in the loader",
            command=looked_at,
            expected=found("DAT104", file=_HERE, function="stalls", says="first batch did not come within 1 s"),
        ),
        Plant(
            name="in a run",
            command=in_a_run,
            expected=found("TRN102", file=_HERE, function="stalls", says=r"waiting for a batch at read of .*of step 1"),
        ),
    ),
)
