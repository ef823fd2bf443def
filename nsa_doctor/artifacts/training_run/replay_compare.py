"""Where a run leaves the course that its own checkpoint, rows and configuration set, when steps are computed again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.replay_result import Again, MoveAgain, StepAgain
from nsa_doctor.artifacts.training_run.sessions import is_step

_LOSS, _NORM, _MOVE = 1e-5, 5e-4, 1e-3  # of the number itself: other orders of the same sums in float32
_OF_THE_NOISE = 4.0


class OtherRowsError(Exception):
    """The run made a step with other rows than its data give: nothing is to be compared."""


@dataclass(frozen=True, kw_only=True)
class Departure:
    """The first number of a run that is another: of a step, or of the weights that `names` names, the furthest first.

    `recorded` is the run's value and `again` the doctor's; of weights both are how far the first of them went.
    """

    kind: Literal["loss", "gradient", "weights", "evaluation"]
    step: int
    recorded: float
    again: float
    apart: float = 0.0
    names: tuple[str, ...] = ()


def departure(record: RunRecord, again: Again) -> Departure | None:
    """None where there is none; raises OtherRowsError.

    Once the first step has the loss and the gradient it should have, what comes after is a matter of the weights.
    """
    beats = {(beat.step, beat.rank): beat for beat in record.beats if is_step(beat)}
    _require_same_rows(beats, again)
    of_steps = [_of_step(step, beats.get((step.step, 0))) for step in again.steps]
    found = (*of_steps[:1], _of_weights(again), *of_steps[1:], _of_evaluation(record, again))
    return next((each for each in found if each is not None), None)


def has_logged(record: RunRecord, again: Again) -> bool:
    """Whether the run tells anything of a step that was computed again."""
    made = {beat.step for beat in record.steps}
    return bool(again.moves) or any(step.step in made for step in again.steps)


def nearness(record: RunRecord, again: Again) -> str:
    """How near the numbers of a run are to those computed again, as shares of these, in words."""
    beats = {beat.step: beat for beat in record.steps}
    pairs = [(beats[step.step], step) for step in again.steps if step.step in beats]
    losses = [_share(beat.loss, step.loss) for beat, step in pairs if beat.loss is not None]
    norms = [_share(beat.grad_norm, step.norm) for beat, step in pairs if beat.grad_norm is not None]
    of = (("loss", losses), ("norm of the gradient", norms), ("way of each weight", list(map(_strayed, again.moves))))
    return ", ".join(f"{name} to {max(shares):.0e}" for name, shares in of if shares)


def _require_same_rows(beats: Mapping[tuple[int | None, int], Beat], again: Again) -> None:
    for step in again.steps:
        for rank, batch in enumerate(step.batches):
            beat = beats.get((step.step, rank))
            if beat is not None and beat.batch not in (None, batch):
                raise OtherRowsError(
                    f"step {step.step} was made with other rows than its configuration gives after step {again.first}"
                )


def _of_step(step: StepAgain, beat: Beat | None) -> Departure | None:
    if beat is None:
        return None
    if beat.loss is not None and _is_another(beat.loss, step.loss, step.loss_noise, _LOSS):
        return Departure(kind="loss", step=step.step, recorded=beat.loss, again=step.loss)
    if beat.grad_norm is not None and _is_another(beat.grad_norm, step.norm, step.norm_noise, _NORM):
        return Departure(kind="gradient", step=step.step, recorded=beat.grad_norm, again=step.norm)
    return None


def _of_weights(again: Again) -> Departure | None:
    astray = [each for each in again.moves if not each.apart <= _MOVE * each.again + _OF_THE_NOISE * each.noise]
    if not astray:
        return None
    worst, *others = sorted(astray, key=_strayed, reverse=True)
    names = (worst.name, *(each.name for each in others))
    return Departure(
        kind="weights", step=again.last, recorded=worst.recorded, again=worst.again, apart=worst.apart, names=names
    )


def _of_evaluation(record: RunRecord, again: Again) -> Departure | None:
    losses = {each.step: each.loss for each in record.evaluations}
    for each in again.evaluations:
        loss = losses.get(each.step)
        if loss is not None and _is_another(loss, each.loss, each.noise, _LOSS):
            return Departure(kind="evaluation", step=each.step, recorded=loss, again=each.loss)
    return None


def _is_another(recorded: float, again: float, noise: float, share: float) -> bool:
    return not abs(recorded - again) <= share * again + _OF_THE_NOISE * noise


def _strayed(move: MoveAgain) -> float:
    return _share(move.again + move.apart, move.again)


def _share(recorded: float, again: float) -> float:
    """By how much one is off, as a share of the other."""
    if recorded == again:
        return 0.0
    return abs(recorded - again) / abs(again) if again else math.inf
