"""What a pass of equal tokens adds to scores for each token between a query and its key (ALiBi, arXiv 2108.12409)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.score_watch import MASKED, softmaxes
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import tensors_in

_FEWEST = 8  # keys in a row
_EVEN = 1e-3  # what steps of equal size may differ by
_LEAST = 1e-6  # of the scores: steps below it are roundings
_STEEP = 1.0  # a weight is a third of the one before


@dataclass(frozen=True)
class WrongBias:
    """What is wrong with a bias, in words; by how much the scores of each head rise towards the query; its maker."""

    text: str
    slopes: tuple[float, ...]
    place: Place


def wrong_biases(sp: BuiltModule, x: Tensor, other: Tensor) -> Iterator[WrongBias]:
    """Biases of the softmaxes of one pass that grow with the distance of a key, or fall too fast in every head.

    x and other [1, S, ...] each hold one token everywhere: a bias that these decide is a forgetting, and no distance's.
    """
    found = list(_slopes(sp, x))
    if not any(_fault(slopes) for slopes, _ in found):
        return
    for (slopes, place), (again, _) in zip(found, _slopes(sp, other), strict=False):
        text = _fault(slopes)
        if text is not None and _are_close(slopes, again):
            yield WrongBias(text, tuple(slopes), _maker(sp, x, slopes) or place)


def _slopes(sp: BuiltModule, x: Tensor) -> Iterator[tuple[list[float], Place]]:
    """Of each softmax over all tokens, by how much the scores of its heads rise towards the query."""
    for softmax in softmaxes(sp, x)[0]:
        if softmax.is_of_tokens(x.shape[1]) and softmax.is_fed_alike:
            heads = softmax.scores.double().flatten(0, -3)
            yield [slope for head in heads if (slope := _slope(head)) is not None], softmax.place


def _are_close(slopes: Sequence[float], others: Sequence[float]) -> bool:
    pairs = zip(slopes, others, strict=False)
    return len(slopes) == len(others) and all(abs(one - other) <= _EVEN * abs(one) for one, other in pairs)


def _fault(slopes: list[float]) -> str | None:
    falling = [each for each in slopes if each < 0]
    if falling:
        heads = f"{len(falling)} of {len(slopes)} heads score" if len(slopes) > 1 else "the head scores"
        return f"{heads} a key higher the farther it lies from its query, by up to {-min(falling):.3g} a token"
    if len(slopes) > 1 and min(slopes) > _STEEP:
        return f"in every head a key's score falls by {min(slopes):.3g} or more for each token to its query"
    return None


def _slope(scores: Tensor) -> float | None:
    """By how much scores [S, S] of equal tokens rise from a key to the next nearer one; None where not evenly.

    Where keys ahead of a query and behind it disagree it is the lower one.
    """
    length = len(scores)
    behind = _rise(scores[-1])
    ahead = _rise(scores[length // 2, length // 2 :].flip(0)) if behind is not None else None
    return behind if ahead is None or behind is None else min(behind, ahead)


def _rise(row: Tensor) -> float | None:
    """What the last keys of a row that are not hidden rise by from one to the next; the query's own is the last."""
    hidden = (~(row > MASKED)).nonzero()
    row = row[int(hidden[-1]) + 1 :] if len(hidden) else row
    if len(row) < _FEWEST:
        return None
    steps = row.diff()
    rise = float(steps.mean())
    is_even = bool(((steps - rise).abs() <= _EVEN * abs(rise)).all())
    return rise if is_even and abs(rise) > _LEAST * float(row.abs().max()) else None


def _maker(sp: BuiltModule, x: Tensor, slopes: list[float]) -> Place | None:
    """The first line that makes numbers which rise or fall from key to key as a head's scores do."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Rises(places, x.shape[1], slopes)

    def passed() -> None:
        with torch.no_grad(), places.watching(), watch:
            sp(x)

    return None if isinstance(attempt(passed), Caught) else watch.place


class _Rises(DispatchWatcher):
    def __init__(self, places: Places, length: int, slopes: list[float]) -> None:
        super().__init__()
        self.place: Place | None = None
        self._places, self._length, self._slopes = places, length, slopes

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and look at what it makes."""
        result = func(*args, **kwargs)
        if self.place is None and any(self._rises(each) for each in tensors_in(result)):
            self.place = self._places.here()[0]
        return result

    def _rises(self, tensor: Tensor) -> bool:
        if tensor.ndim < 3 or tensor.shape[-1] != self._length or not tensor.is_floating_point():
            return False
        rows = tensor.detach().double().flatten(0, -2)
        steps = (rows[:, -1] - rows[:, -_FEWEST]) / (_FEWEST - 1)
        due = torch.tensor(self._slopes, dtype=steps.dtype, device=steps.device)
        return bool(((steps[:, None] - due).abs() <= _EVEN * due.abs()).any(0).all())
