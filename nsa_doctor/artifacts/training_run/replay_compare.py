"""Where a run leaves the course that its own checkpoint, rows and configuration set, when steps are computed again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.replay_result import Replay, ReplayedMove, ReplayedStep
from nsa_doctor.artifacts.training_run.sessions import is_step

_LOSS, _NORM, _MOVE = 1e-5, 5e-4, 1e-3  # of the number itself: other orders of the same sums in float32
_OF_THE_NOISE = 4.0


class OtherRowsError(Exception):
    """The run made a step with other rows than its data give: nothing is to be compared."""


@dataclass(frozen=True, kw_only=True)
class Departure:
    """The first number of a run that is another: of a step, or of the weights that `names` names, the furthest first.

    `recorded` is the run's value and `replayed` the doctor's; of weights both are how far the first of them went.
    """

    kind: Literal["loss", "gradient", "weights", "evaluation"]
    step: int
    recorded: float
    replayed: float
    apart: float = 0.0
    names: tuple[str, ...] = ()


def departure(record: RunRecord, replay: Replay) -> Departure | None:
    """None where there is none; raises OtherRowsError.

    Once the first step has the loss and the gradient it should have, what comes after is a matter of the weights.
    """
    beats = {(beat.step, beat.rank): beat for beat in record.beats if is_step(beat)}
    _require_same_rows(beats, replay)
    of_steps = [_of_step(step, beats.get((step.step, 0))) for step in replay.steps]
    found = (*of_steps[:1], _of_weights(replay), *of_steps[1:], _of_evaluation(record, replay))
    return next((each for each in found if each is not None), None)


def has_logged(record: RunRecord, replay: Replay) -> bool:
    """Whether the run tells anything of a step that was computed again."""
    made = {beat.step for beat in record.steps}
    return bool(replay.moves) or any(step.step in made for step in replay.steps)


def nearness(record: RunRecord, replay: Replay) -> str:
    """How near the numbers of a run are to those computed again, as shares of these, in words."""
    beats = {beat.step: beat for beat in record.steps}
    pairs = [(beats[step.step], step) for step in replay.steps if step.step in beats]
    losses = [_share(beat.loss, step.loss) for beat, step in pairs if beat.loss is not None]
    norms = [_share(beat.grad_norm, step.norm) for beat, step in pairs if beat.grad_norm is not None]
    of = (("loss", losses), ("norm of the gradient", norms), ("way of each weight", list(map(_strayed, replay.moves))))
    return ", ".join(f"{name} to {max(shares):.0e}" for name, shares in of if shares)


def _require_same_rows(beats: Mapping[tuple[int | None, int], Beat], replay: Replay) -> None:
    for step in replay.steps:
        for rank, batch in enumerate(step.batches):
            beat = beats.get((step.step, rank))
            if beat is not None and beat.batch not in (None, batch):
                raise OtherRowsError(
                    f"step {step.step} was made with other rows than its configuration gives after step {replay.first}"
                )


def _of_step(step: ReplayedStep, beat: Beat | None) -> Departure | None:
    if beat is None:
        return None
    if beat.loss is not None and _is_another(beat.loss, step.loss, step.loss_noise, _LOSS):
        return Departure(kind="loss", step=step.step, recorded=beat.loss, replayed=step.loss)
    if beat.grad_norm is not None and _is_another(beat.grad_norm, step.norm, step.norm_noise, _NORM):
        return Departure(kind="gradient", step=step.step, recorded=beat.grad_norm, replayed=step.norm)
    return None


def _of_weights(replay: Replay) -> Departure | None:
    astray = [each for each in replay.moves if not each.apart <= _MOVE * each.replayed + _OF_THE_NOISE * each.noise]
    if not astray:
        return None
    worst, *others = sorted(astray, key=_strayed, reverse=True)
    names = (worst.name, *(each.name for each in others))
    return Departure(
        kind="weights",
        step=replay.last,
        recorded=worst.recorded,
        replayed=worst.replayed,
        apart=worst.apart,
        names=names,
    )


def _of_evaluation(record: RunRecord, replay: Replay) -> Departure | None:
    losses = {each.step: each.loss for each in record.evaluations}
    for each in replay.evaluations:
        loss = losses.get(each.step)
        if loss is not None and _is_another(loss, each.loss, each.noise, _LOSS):
            return Departure(kind="evaluation", step=each.step, recorded=loss, replayed=each.loss)
    return None


def _is_another(recorded: float, replayed: float, noise: float, share: float) -> bool:
    return not abs(recorded - replayed) <= share * replayed + _OF_THE_NOISE * noise


def _strayed(move: ReplayedMove) -> float:
    return _share(move.replayed + move.apart, move.replayed)


def _share(recorded: float, replayed: float) -> float:
    """By how much one is off, as a share of the other."""
    if recorded == replayed:
        return 0.0
    return abs(recorded - replayed) / abs(replayed) if replayed else math.inf
