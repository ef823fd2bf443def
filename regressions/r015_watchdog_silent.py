"""r015 watchdog-silent

Reported: 001 to 003, which set a watchdog of 180 s; 003 counts "never triggered" as a success.
Symptom: a step that stands still has to leave its stacks behind, and nothing may keep the watchdog from it.
Cause: none is reported. Established: a watchdog that never spoke and one that cannot speak leave the same folder
    behind, so its silence is evidence of health only where it was seen to speak. Here a thread of its own writes the
    stacks without a lock of the one that hangs (asserted on a step that does), and a gap between two heartbeats that
    is longer than the watchdog's limit is reported even where it said nothing.
Check: TRN102, with the line that blocks; without stacks, that the watchdog said nothing.
"""

import tempfile
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from torch.nn.functional import cross_entropy

from nsa.config import load_config
from nsa_doctor.artifacts.training_run.stacks import stall_in
from nsa_doctor.cases.case import found
from nsa_doctor.cases.record import Case, Plant

from .runs import finished, written

_HERE, _LIMIT = Path(__file__).name, 1.0
_FAULTY_AT, _STEPS, _SECONDS, _LONGER = 15, 20, 1.4, 4.5
_never = threading.Event()


def hanging(seconds: float) -> Callable[..., Any]:
    """The loss of one step does not come for so long."""
    calls = count()  # the first is the look before step 1

    def hangs(*given: Any, **named: Any) -> Any:
        if next(calls) == _FAULTY_AT:
            _never.wait(seconds)
        return cross_entropy(*given, **named)

    return hangs


def stalled(folder: Path, seconds: float = _SECONDS, **more: Any) -> Path:
    seams = {"nsa.train.objective.cross_entropy": hanging(seconds), **more}
    return written(folder, seams, steps=_STEPS, seq_len=32, batch_size=2, watchdog_seconds=_LIMIT)


def reproduce() -> None:
    assert load_config("m7c_125m_fast_log").train.watchdog_seconds == 180.0, "the watchdog has another limit"
    with tempfile.TemporaryDirectory() as place:
        record = finished(stalled(Path(place)))
    assert len(record.dumps) == 1, f"{len(record.dumps)} files of stacks are left of one stall"
    stall = stall_in(record.dumps[0])
    assert (stall.stage, stall.step) == ("forward and backward", _FAULTY_AT), f"it tells of {stall}"
    assert _LIMIT <= (stall.seconds or 0.0) < _SECONDS, f"it waited {stall.seconds} s"
    assert getattr(stall.line, "function", None) == "hangs", f"the stacks name {stall.line}"


def blind(watchdog: Any) -> None:
    """A thread that ends as soon as it begins."""


def a_step_that_blocks(folder: Path) -> Sequence[str]:
    return ["watch", str(stalled(folder))]


def a_watchdog_that_sees_nothing(folder: Path) -> Sequence[str]:
    return ["watch", str(stalled(folder, _LONGER, **{"nsa.train.watchdog.Watchdog._watch": blind}))]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="a watchdog that sees nothing",
            command=a_watchdog_that_sees_nothing,
            expected=found("TRN102", says=r"step 15 took [4-6]\.\d s, and the watchdog, set to 1 s, said nothing"),
        ),
        Plant(
            name="a step that blocks",
            command=a_step_that_blocks,
            expected=found(
                "TRN102", file=_HERE, function="hangs", says=r"forward and backward of step 15 took \d\.\d s"
            ),
        ),
    ),
)
