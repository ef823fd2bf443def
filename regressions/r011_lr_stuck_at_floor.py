"""r011 lr-stuck-at-floor

Reported: 001, of m7c_125m_fast_log (lr 2.0e-4, 2,000 steps of warm-up, 50,000 steps); the same runs are in 000 and 002.
Symptom: the learning rate stays at 1e-07 and the loss does not fall.
Cause: reported as the floor of the cosine, and the floor of 0.1 was taken out. No floor can be it: a tenth of 2.0e-4 is
    2e-05, and a cosine's floor counts after the warm-up, 2,000 steps later. 2.0e-4 / 2,000 = 1e-07 is step 1 of the
    warm-up, and these runs hung in step 2 (r001): but for one line, every rate that the reports print is of step 1.
    That line (002) has 3.00e-07 at step 5: the rate rises, though a warm-up that counts every step has 5e-07 there;
    1e-07 and 3e-07 are what a schedule gives that is stepped every other time. That a rate ever stood still is shown
    nowhere.
Check: TRN301 on a rate that stands still, TRN302 on the pace that the log of 002 shows.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsa.config import load_config
from nsa.train.schedule import learning_rate
from nsa_doctor.cases.case import found
from nsa_doctor.cases.record import Case, Plant

from .runs import WARM_UP, finished, seen_by_watch, written

_STEPS = 12


def reproduce() -> None:
    train = load_config("m7c_125m_fast_log").train
    for step, wanted in ((1, 1e-7), (5, 5e-7), (1000, 1e-4), (2000, 2e-4), (26_000, 1e-4), (50_000, 0.0)):
        assert abs(learning_rate(step, train) - wanted) <= 1e-9 * train.lr, f"step {step} has another rate"
    with tempfile.TemporaryDirectory() as place:
        run = written(Path(place), steps=_STEPS, **WARM_UP)
        rates = [beat.learning_rate for beat in finished(run).steps]
        assert rates == [learning_rate(step, train) for step in range(1, _STEPS + 1)], f"the run had {rates}"
        findings = seen_by_watch(run)
        assert not findings, f"the start of a long warm-up is found fault with: {findings[0].message}"


def stands_still(step: int, train: Any) -> float:
    return learning_rate(1, train)


def stepped_every_other_time(step: int, train: Any) -> float:
    return learning_rate((step + 1) // 2, train)


def a_floor_as_a_rate(step: int, train: Any) -> float:
    """What was said to be at fault: a cosine whose floor is the rate itself, and reached at once."""
    return min(learning_rate(step, train), 1e-7)


def as_reported(folder: Path) -> Sequence[str]:
    return ["watch", str(written(folder, {"nsa.train.loop.learning_rate": stands_still}, steps=_STEPS, **WARM_UP))]


def as_logged(folder: Path) -> Sequence[str]:
    seams = {"nsa.train.loop.learning_rate": stepped_every_other_time}
    return ["watch", str(written(folder, seams, steps=_STEPS, **WARM_UP))]


def on_a_floor(folder: Path) -> Sequence[str]:
    seams = {"nsa.train.loop.learning_rate": a_floor_as_a_rate}
    return ["watch", str(written(folder, seams, steps=40, lr=2e-4, warmup_steps=4))]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="a rate that stands still in the warm-up",
            command=as_reported,
            expected=found("TRN301", says=r"stands at 1e-07 \(.*\), where the schedule has 1.2e-06 at step 12"),
        ),
        Plant(
            name="the rates of report 002",
            command=as_logged,
            expected=found("TRN302", says=r"of step 2 is 1e-07 and not 2e-07"),
        ),
        Plant(
            name="a floor that is the rate",
            command=on_a_floor,
            expected=found("TRN301", says=r"stands at 1e-07 \(.*\), where the schedule has 0.0002 at step 4"),
        ),
    ),
)
