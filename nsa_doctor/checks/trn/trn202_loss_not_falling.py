"""TRN202 loss-not-falling

Detects: a loss that after many steps is still that of a guess, or the same number over and over.
Matters: nothing is learnt, and nothing will be: weights that no update reaches, targets that belong to other inputs.
Fix: see that the optimizer holds the model's own parameters and is stepped, and that targets follow their inputs.

Example:
    # faulty
    optimizer = AdamW(model.parameters())
    model = Transformer(config)  # the optimizer steps the parameters of the one before
    # correct
    model = Transformer(config)
    optimizer = AdamW(model.parameters())
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from nsa_doctor.artifacts.training_run.declared import declared
from nsa_doctor.artifacts.training_run.record import Beat
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import (
    Levels,
    Series,
    levels,
    rank_correlation,
    series,
    timeline,
    travelled,
)
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.training_runs import trained

_FEWEST_POINTS, _FEWEST_STEPS, _FEWEST_WITHOUT_RATES = 20, 50, 200
# Rates that add up to most of what a weight is worth (about 0.02): by then Adam has moved the loss by a tenth of a nat
# even in a narrow model. A long warm-up has not come so far.
_LEAST_TRAVEL, _FAR = 1.5e-2, 0.1
_OF_A_GUESS = 0.01  # what the frequencies of symbols alone win is more: 5 % in text
_ERRORS = 3.0  # falls of more are falls: to be silent by chance costs nothing
_PRETRAINED = 4.0  # nats a token: a model that has learnt any text is below, whatever its vocabulary
_FLAT = 0.005
_FALLS = -0.36  # Kendall's tau of the last two thirds; of 30 points without a trend one series in 300 is below


def run(subject: RunSubject) -> Iterator[Finding]:
    beats = timeline(subject.record)
    losses = series(beats, "loss")
    if not losses:
        raise NotComparableError("the run logs no finite loss")
    message = _frozen(losses)
    if not message:
        _require_enough(losses, beats)
        words = declared(subject.record)
        is_over = losses.steps[-1] >= (words.steps or math.inf) and (travelled(beats) or 0) >= _FAR
        message = _stuck(losses, levels(losses, 4), words.guess, is_over=is_over)
    if message:
        yield Finding(message=message, evidence={"run": subject.name, "steps": losses.span}, repro=subject.reproduce)


def _frozen(losses: Series) -> str:
    """The same number at every step, logged in so many digits that it is no rounding."""
    same = losses.part(-_FEWEST_POINTS)
    last = same.values[-1]
    is_rounded = len(f"{abs(last):.12g}".replace(".", "").lstrip("0").rstrip("0")) < 5
    if last == 0.0:  # it may have come down to nothing
        is_rounded = any(value != last for value in losses.values)
    if is_rounded or len(same) < _FEWEST_POINTS or any(value != last for value in same.values):
        return ""
    return f"the loss is {last:.6g} at every one of {same.steps_text}"


def _require_enough(losses: Series, beats: Sequence[Beat]) -> None:
    travel = travelled(beats)
    if travel is not None and travel < _LEAST_TRAVEL:
        raise NotApplicableError(f"rates add up to {travel:.1e} in {losses.steps_text}; {_LEAST_TRAVEL:g} is needed")
    fewest = _FEWEST_STEPS if travel is not None else _FEWEST_WITHOUT_RATES
    if len(losses) < _FEWEST_POINTS or losses.span < fewest:
        raise NotApplicableError(f"{losses.span} steps, {len(losses)} losses; {fewest} and {_FEWEST_POINTS} are needed")


def _stuck(losses: Series, quarters: Levels, guess: float | None, *, is_over: bool) -> str:
    """What is wrong with where the loss stands; nothing where it falls, or has fallen and rests."""
    before, now = quarters.values[2:]
    late = levels(losses.part(len(losses) // 3), 30, fewest=2)
    if is_over and guess is not None and guess <= now < 3 * guess and now > losses.values[0] - 3 * quarters.noise:
        return f"after the last step the loss is {now:.4g}, and that of a guess among all symbols {guess:.4g}"
    if before - now > _ERRORS * quarters.error + 0.2 * _OF_A_GUESS * abs(now) or rank_correlation(late.values) < _FALLS:
        return ""
    last = f"{now:.4g} ({quarters.stretches[-1].steps_text})"
    if guess is not None and now < 3 * guess:  # beyond it is another unit, such as a sum
        message = f"the loss is still {last}, no better than a guess among all symbols ({guess:.4g}), and does not fall"
        return message if now >= guess - max(_ERRORS * quarters.error, _OF_A_GUESS * guess) else ""
    is_whole = losses.steps[0] <= max(10, losses.span // 10)
    is_flat = max(quarters.values) - min(quarters.values) <= _ERRORS * quarters.error + _FLAT * abs(now)
    is_stuck = now >= _PRETRAINED and is_whole and is_flat
    return f"the loss is {quarters.values[0]:.4g} at first and still {last}: it does not fall" if is_stuck else ""


def planted(subject: RunSubject) -> RunSubject:
    from torch.optim import AdamW

    class UpdatesNothing(AdamW):
        def step(self, closure: Any = None) -> Any:
            return None

    return trained(steps=60, eval_every=0, seams={"nsa.train.optimizer.AdamW": UpdatesNothing})


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", explained_by=("TRN2", "TRN3"), priority=834
)
