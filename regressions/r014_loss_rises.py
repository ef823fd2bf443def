"""r014 loss-rises

Reported: 001; the numbers are in 002: batch 1 of 1,024 synthetic tokens, loss 5.7168 at step 1 and 5.7614 at step 5.
Symptom: the loss increases instead of decreasing.
Cause: reported as the schedule (r011). Established: five steps of such a warm-up can show neither a rise nor a fall.
    Adam moves a weight by about the rate, the rates of the four steps before add up to 1e-06 at most, and a row of
    1,024 other tokens alone changes the loss of an untrained model by hundredths. Run here, the losses of the five
    steps are those of the same five batches under a rate of nothing to 0.001, and differ among themselves by more.
    (5.7 is near ln 256 = 5.55, so that is a model of bytes; the one that reads gpt2 began at 10.95, near ln 50,257 =
    10.82.) What does make a loss rise is planted: a gradient with its sign flipped.
Check: TRN203 on a loss that rises, and none on five steps whose rates move no weight.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsa.train.loop import Loop
from nsa_doctor.cases.case import found
from nsa_doctor.cases.record import Case, Plant

from .runs import WARM_UP, finished, losses, seen_by_watch, written

_STEPS, _NOTHING = 5, 1e-30
_ROWS: dict[str, Any] = {"seq_len": 1024, "batch_size": 1}
_backward = Loop._backward


def reproduce() -> None:
    with tempfile.TemporaryDirectory() as place:
        run = written(Path(place) / "reported", steps=_STEPS, **_ROWS, **WARM_UP)
        logged = losses(finished(run))
        still = losses(finished(written(Path(place) / "still", steps=_STEPS, **_ROWS, lr=_NOTHING, warmup_steps=0)))
        by_weights = max(abs(one - other) for one, other in zip(logged, still, strict=True))
        by_batches = max(still) - min(still)
        assert by_weights < 1e-3 < by_batches, f"weights changed the loss by {by_weights:.2g}, batches {by_batches:.2g}"
        assert not seen_by_watch(run), "five steps of a warm-up are found fault with"
        falling = losses(finished(written(Path(place) / "trained", steps=30)))
        assert sum(falling[-5:]) < 0.9 * sum(falling[:5]), (
            f"the loss does not fall: {falling[0]:.3f}, {falling[-1]:.3f}"
        )


def flipped(loop: Any, *arguments: Any) -> Any:
    sums = _backward(loop, *arguments)
    for parameter in loop.machinery.model.parameters():
        parameter.grad = None if parameter.grad is None else -parameter.grad
    return sums


def planted(folder: Path) -> Sequence[str]:
    seams = {"nsa.train.loop.Loop._backward": flipped}
    return ["watch", str(written(folder, seams, steps=40, lr=5e-3, warmup_steps=4))]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="a gradient with its sign flipped",
            command=planted,
            expected=found("TRN203", says=r"the loss rises from 5\.\d+ \(steps 1 to \d+\)"),
        ),
    ),
)
