"""How a step weighs its micro-batches, in its gradient and in the loss that it returns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.method_calls import calls_of
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.begun_loop import BegunLoop, WithoutDropout, small_gradients
from nsa_doctor.probes.model.stepping import Step
from nsa_doctor.subject.contract import Subject

_ROWS = (1, 3)
_NUM_COPIES = 2
_BY_WEIGHT = (1 / _NUM_COPIES, 1.0, float(_NUM_COPIES))
_RESIDUE = 3e-2  # a loss of balance over a whole batch is no sum over micro-batches
_LOSSES_APART = 1e-4
_LEAST_SHARE = 0.02
_ALONE = ((1.0, 0.0), (0.0, 1.0))
_EQUAL, _LOGGED = "each holds as many tokens", "the loss is no more than logged"


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """What a step does with its micro-batches; `right_where` says when that is no fault."""

    kind: str
    message: str
    place: Place
    right_where: str = ""
    evidence: dict[str, float] = field(default_factory=dict)


def weighed_otherwise(subject: Subject, length: int, seed: int) -> Weighed | None:
    """What is wrong or worth a note; None where loss and gradient agree, or where it cannot be seen."""
    sp = BegunLoop.of(subject).sp
    parts = [sp.input(length, batch=rows, seed=seed + index) for index, rows in enumerate(_ROWS)]
    if (found := _of_copies(subject, parts)) is not None:
        return found
    try:
        with unobserved():  # a loop may want micro-batches of one size
            found = _of_unequal(subject, parts)
    except SubjectFailedError:
        pass
    return found or _of_schedule(subject, parts)


def _of_copies(subject: Subject, parts: Sequence[Tensor]) -> Weighed | None:
    """Of copies of one: as often as they are in the gradient they have to be in the loss, or once."""
    batch = parts[0]
    alone, _ = _taken(subject, [batch])
    copies, place = _taken(subject, [batch] * _NUM_COPIES)
    weights = _weights(copies, [alone])
    if weights is None:
        return None
    times, of_loss = weights[0], copies.loss / alone.loss if alone.loss else math.nan
    is_once, is_known = _is_near(times, 1.0), math.isfinite(of_loss)
    if _is_near(times, of_loss) or (is_once and not _is_near(of_loss, _NUM_COPIES)):
        return None
    if not any(_is_near(times, each) for each in _BY_WEIGHT):
        return None  # the second comes out otherwise: by a queue, or a memory, that the first has moved
    message = f"{_NUM_COPIES} copies of a micro-batch at S={batch.shape[1]} give {times:.3g} times the gradient of one"
    message += f", and {of_loss:.3g} times its loss" if is_known else ", and no loss"
    right_where = "the loss is to be summed" + (", and the gradient is not" if is_once else "")
    return Weighed(
        kind="copies",
        message=message,
        place=place,
        right_where=right_where if is_once or not is_known else "",
        evidence={"gradient": times, **({"loss": of_loss} if is_known else {})},
    )


def _of_unequal(subject: Subject, parts: Sequence[Tensor]) -> Weighed | None:
    """Of one row and of more, where the losses of the two are apart enough to tell them."""
    steps = [_taken(subject, [part])[0] for part in parts]
    both, place = _taken(subject, parts)
    weights, first = _weights(both, steps), _share_of_first(both.loss, steps[0].loss, steps[1].loss)
    if weights is None:
        return None
    number = next((number for number, each in enumerate(_ALONE) if _are_near(weights, each)), None)
    if number is not None:
        rows = f"micro-batches of {' and '.join(map(str, _ROWS))} rows at S={parts[0].shape[1]}"
        message = f"of {rows} the {('first', 'last')[number]} alone is in the gradient of a step"
        return Weighed(kind="one", message=message, place=place, evidence={"gradient_of_first": weights[0]})
    if first is None or abs(sum(weights) - 1) > _RESIDUE:
        return None
    agree, is_alike = _are_near(weights, (first, 1 - first)), _are_near(weights, (0.5, 0.5))
    if agree and not is_alike:
        return None
    message = f"micro-batches of {' and '.join(map(str, _ROWS))} rows at S={parts[0].shape[1]} have "
    message += f"{_shares((first, 1 - first))} of the loss of a step"
    message += " and of its gradient" if agree else f", and {_shares(weights)} of its gradient"
    is_counted = first < 0.5 - _RESIDUE  # the one row counts for less than the others together
    right_where = _EQUAL if agree else "" if is_alike and is_counted else _LOGGED
    evidence = {"loss_of_first": first, "gradient_of_first": weights[0], "gradient_of_second": weights[1]}
    return Weighed(kind="unequal", message=message, place=place, right_where=right_where, evidence=evidence)


def _of_schedule(subject: Subject, parts: Sequence[Tensor]) -> Weighed | None:
    """Of the rate of the second step: the first one had as many tokens, in one micro-batch or in several."""
    rates = []
    copies = [parts[0]] * _NUM_COPIES
    for batches in ([torch.cat(copies)], copies):
        begun = BegunLoop.of(subject)
        begun.step(batches, subject.seed)
        second = begun.step([parts[0]], subject.seed)
        rates.append(max(second.rates, default=math.nan))
    if not all(map(math.isfinite, rates)) or _is_near(*rates):
        return None
    return Weighed(
        kind="schedule",
        message=f"the second step has a rate of {rates[0]:.3g} after a step on one micro-batch, and of {rates[1]:.3g} "
        f"after the same rows in {_NUM_COPIES}",
        place=second.place,
        evidence={"rate": rates[0], "rate_after_several": rates[1]},
    )


def _taken(subject: Subject, batches: Sequence[Tensor]) -> tuple[Step, Place]:
    """The first step of a loop on these, with gradients before any limit, and the line that begins its backward."""
    begun = BegunLoop.of(subject)
    with WithoutDropout(), small_gradients(begun.sp.module), calls_of(Tensor, "backward", begun.places()) as calls:
        taken = begun.step(batches, subject.seed)
    return taken, begun.place_of(begun.loop.step, calls[-1] if calls else taken.place)


def _weights(both: Step, parts: Sequence[Step]) -> list[float] | None:
    """How often the gradient of each part is in that of all, by least squares; None where that is not all there is."""
    names = [name for name in both.gradients if all(name in each.gradients for each in parts)]
    if not names or len(names) != len(both.gradients):
        return None
    columns = torch.stack([_flat(each, names) for each in parts], dim=1)
    whole = _flat(both, names)
    if not bool(torch.isfinite(columns).all()) or not bool(columns.norm(dim=0).all()):
        return None
    found = torch.linalg.lstsq(columns, whole[:, None], driver="gelsd").solution[:, 0]
    rest = float((whole - columns @ found).norm())
    return found.tolist() if rest <= _RESIDUE * float(columns.norm()) else None


def _flat(taken: Step, names: Sequence[str]) -> Tensor:
    return torch.cat([taken.gradients[name].to_dense().flatten().double().cpu() for name in names])


def _share_of_first(loss: float, one: float, other: float) -> float | None:
    """The share of the one in a mean of both that is this loss; None where they hardly differ, or it is no mean."""
    if not math.isfinite(loss + one + other) or abs(one - other) <= _LOSSES_APART * max(abs(one), abs(other)):
        return None
    share = (loss - other) / (one - other)
    return share if _LEAST_SHARE < share < 1 - _LEAST_SHARE else None


def _are_near(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a - b) <= _RESIDUE for a, b in zip(one, other, strict=True))


def _is_near(one: float, other: float) -> bool:
    return abs(one - other) <= _RESIDUE * max(abs(one), abs(other))


def _shares(weights: Sequence[float]) -> str:
    return " and ".join(f"{each:.2g}" for each in weights)
