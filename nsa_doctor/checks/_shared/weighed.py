"""How a step weighs its micro-batches, in its gradient and in the loss that it returns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.method_calls import calls_of
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.begun_loop import BegunLoop, small_gradients, without_dropout
from nsa_doctor.probes.model.stepping import Step
from nsa_doctor.subject.contract import Subject

_ROWS = (1, 3)
_NUM_COPIES = 2
_LIKENESS = 1e-2
_RESIDUE = 3e-2  # a loss of balance over a whole batch is no sum over micro-batches
_LOSSES_APART = 1e-4
_BY_ROWS = tuple(rows / sum(_ROWS) for rows in _ROWS)
_ALIKE, _SUMMED, _LAST = (0.5, 0.5), (1.0, 1.0), (0.0, 1.0)
_EQUAL = "each holds as many tokens"
_WAYS = (_BY_ROWS, _ALIKE, _SUMMED, _LAST, (1.0, 0.0))


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
    with unobserved():
        sp = BegunLoop.of(subject).sp
        parts = [sp.input(length, batch=rows, seed=seed + index) for index, rows in enumerate(_ROWS)]
        looked = (_of_copies, _of_unequal, _of_schedule)
        found = attempt(lambda: next((item for look in looked if (item := look(subject, parts)) is not None), None))
    if isinstance(found, Caught):  # a loop may want all of one size, or several: what it raises others tell of
        return None
    return found


def _of_copies(subject: Subject, parts: Sequence[Tensor]) -> Weighed | None:
    """Of copies of one: as often as they are in the gradient they have to be in the loss, or once."""
    batch = parts[0]
    alone, _ = _taken(subject, [batch])
    copies, place = _taken(subject, [batch] * _NUM_COPIES)
    weights = _weights(copies, [alone])
    if weights is None or not alone.loss:
        return None
    times, of_loss = weights[0], copies.loss / alone.loss
    is_once = _is_near(times, 1.0)
    if not math.isfinite(of_loss) or _is_near(times, of_loss) or (is_once and not _is_near(of_loss, _NUM_COPIES)):
        return None
    return Weighed(
        kind="copies",
        message=f"{_NUM_COPIES} copies of a micro-batch at S={batch.shape[1]} give {times:.3g} times the gradient of "
        f"one, and {of_loss:.3g} times its loss",
        place=place,
        right_where="the loss is to be summed, and the gradient is not" if is_once else "",
        evidence={"gradient": times, "loss": of_loss},
    )


def _of_unequal(subject: Subject, parts: Sequence[Tensor]) -> Weighed | None:
    """Of one row and of more, where the losses of the two are apart enough to tell them."""
    steps = [_taken(subject, [part])[0] for part in parts]
    both, place = _taken(subject, parts)
    weights = _weights(both, steps)
    way = _way_of(both.loss, [each.loss for each in steps])
    if weights is None or way is None or way in (_LAST, _LAST[::-1]):
        return None
    rows, agree = " and ".join(map(str, _ROWS)), all(map(_is_near, weights, way))
    message = f"micro-batches of {rows} rows at S={parts[0].shape[1]} have {_shares(way)} of the loss of a step"
    if agree and way != _ALIKE:
        return None
    message += " and of its gradient" if agree else f", and {_shares(weights)} of its gradient"
    evidence = {
        f"{what}_{rows}_rows": value
        for what, each in (("loss", way), ("gradient", weights))
        for rows, value in zip(_ROWS, each, strict=True)
    }
    return Weighed(kind="unequal", message=message, place=place, right_where=_EQUAL if agree else "", evidence=evidence)


def _of_schedule(subject: Subject, parts: Sequence[Tensor]) -> Weighed | None:
    """Of the rate of the second step, which is no matter of how many micro-batches the first one had."""
    rates = []
    for num_copies in (1, _NUM_COPIES):
        begun = BegunLoop.of(subject)
        begun.step([parts[0]] * num_copies, subject.seed)
        second = begun.step([parts[0]], subject.seed)
        rates.append(max(second.rates, default=math.nan))
    if not all(map(math.isfinite, rates)) or _is_near(*rates):
        return None
    return Weighed(
        kind="schedule",
        message=f"the second step has a rate of {rates[0]:.3g} after a step on one micro-batch, and of {rates[1]:.3g} "
        f"after one on {_NUM_COPIES}",
        place=second.place,
        evidence={"rate": rates[0], "rate_after_several": rates[1]},
    )


def _taken(subject: Subject, batches: Sequence[Tensor]) -> tuple[Step, Place]:
    """The first step of a loop on these, with gradients before any limit, and the line that begins its backward."""
    begun = BegunLoop.of(subject)
    without_dropout(begun.sp.module)
    with small_gradients(begun.sp.module), calls_of(Tensor, "backward", begun.places()) as calls:
        taken = begun.step(batches, subject.seed)
    return taken, begun.place_of(begun.loop.step, calls[-1] if calls else taken.place)


def _weights(both: Step, parts: Sequence[Step]) -> list[float] | None:
    """How often the gradient of each part is in that of all, by least squares; None where that is not all there is."""
    names = [name for name in both.gradients if all(name in each.gradients for each in parts)]
    if not names or len(names) != len(both.gradients):
        return None
    columns = torch.stack([_flat(each, names) for each in parts], dim=1)
    whole = _flat(both, names)
    if not bool(torch.isfinite(columns).all()) or not float(columns.norm()):
        return None
    found = torch.linalg.lstsq(columns, whole[:, None], driver="gelsd").solution[:, 0]
    rest = float((whole - columns @ found).norm())
    return found.tolist() if rest <= _RESIDUE * float(columns.norm()) else None


def _flat(taken: Step, names: Sequence[str]) -> Tensor:
    return torch.cat([taken.gradients[name].to_dense().flatten().double().cpu() for name in names])


def _way_of(loss: float, parts: Sequence[float]) -> tuple[float, ...] | None:
    """The one way of weighing that gives this loss of those of its parts; None where none or several do."""
    apart, size = abs(parts[0] - parts[1]), max(map(abs, parts))
    if not math.isfinite(loss + apart) or apart <= _LOSSES_APART * size:
        return None
    near = [way for way in _WAYS if abs(loss - sum(map(float.__mul__, way, parts))) <= _LIKENESS * apart]
    return near[0] if len(near) == 1 else None


def _is_near(one: float, other: float) -> bool:
    return abs(one - other) <= _RESIDUE * max(abs(one), abs(other))


def _shares(weights: Sequence[float]) -> str:
    return " and ".join(f"{each:.2g}" for each in weights)
