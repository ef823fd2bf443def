"""Every softmax over the last dimension in a pass: its scores, its weights, its line; others can be put there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

SOFTMAX = frozenset({"softmax", "safe_softmax"})
MASKED = -1e4  # what is scored below it is meant to be hidden

_ALIKE = 1e4  # in units of the last place
_MOST_OTHERS = 16  # registers and the like beside tokens

Replace = Callable[[int, Tensor, Tensor], Tensor | None]


@dataclass(frozen=True)
class Others:
    """How many rows stand beside tokens in a sequence, and how many of them before."""

    count: int = 0
    before: int = 0


@dataclass(frozen=True)
class Softmax:
    """One softmax: scores and weights [..., K], and where the subject asked for it.

    `is_fed_alike` says that the scores come of projections which were each given the same for all tokens; others than
    tokens, as registers, may stand before or behind them.
    """

    scores: Tensor
    weights: Tensor
    place: Place
    is_fed_alike: bool = False
    others: Others = field(default_factory=Others)

    @property
    def seen(self) -> Tensor:
        """Which keys [T, K] get a weight and are not masked, in any head."""
        return ((self.weights > 0) & (self.scores > MASKED)).flatten(0, -3).any(0)

    def is_of_tokens(self, length: int) -> bool:
        """Whether it weighs all tokens for each of them."""
        return self.scores.ndim > 2 and self.scores.shape[-2:] == (length, length)

    def of_tokens(self, length: int) -> Tensor | None:
        """The scores [..., S, S] of tokens, without those of others; None where it weighs something else."""
        if self.is_of_tokens(length):
            return self.scores
        if not self.others.count or not self.is_of_tokens(length + self.others.count):
            return None
        return self.scores.narrow(-1, self.others.before, length).narrow(-2, self.others.before, length)


def softmaxes(sp: BuiltModule, x: Tensor, replace: Replace | None = None) -> tuple[list[Softmax], Tensor]:
    """All of one pass, and its output; `replace(index, scores, weights)` may give other weights for one of them."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Watch(places, replace, x.shape[1])
    with torch.no_grad(), watch.watching():
        output = sp(x)
    return watch.found, output


def is_over_the_last(result: Any, args: tuple[Any, ...]) -> bool:
    """Whether a softmax that was called with these arguments is one over the last dimension of several."""
    return isinstance(result, Tensor) and result.ndim > 1 and args[1] % result.ndim == result.ndim - 1


class _Watch(DispatchWatcher):
    def __init__(self, places: Places, replace: Replace | None, length: int) -> None:
        super().__init__()
        self.found: list[Softmax] = []
        self._places, self._replace, self._length = places, replace, length
        self._others = Others()
        self._fed: dict[int, _Fed] = {}
        self._alive: list[Tensor] = []  # or memory would be given to another tensor

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the region ends; attention that torch fuses is taken apart."""
        with sdpa_kernel(SDPBackend.MATH), self._places.watching(), self:
            yield

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; note it, and replace its result, where it is a softmax over the last dimension."""
        result = func(*args, **kwargs)
        name = operation_name(func)
        self._follow(name, args, kwargs, result)
        if name not in SOFTMAX or not is_over_the_last(result, args):
            return result
        index = len(self.found)
        is_fed_alike = self._fed.get(memory_of(args[0])) is _Fed.ALIKE
        place = self._places.here()[0]
        scores, weights = args[0].detach().clone(), result.detach().clone()
        self.found.append(Softmax(scores, weights, place, is_fed_alike, self._others))
        other = None if self._replace is None else self._replace(index, args[0], result)
        return result if other is None else other

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """What comes of a projection that was given the same for all tokens, or was not, is known by its memory."""
        given = tensors_in(args, kwargs)
        fed = max((self._fed.get(memory_of(tensor), _Fed.NOTHING) for tensor in given), default=_Fed.NOTHING)
        if name in ("mm", "addmm"):
            fed = self._projected(*args[-2:]) or fed
        for tensor in tensors_in(result) if fed else ():
            self._fed[memory_of(tensor)] = fed
            self._alive.append(tensor)

    def _projected(self, rows: Tensor, weight: Tensor) -> "_Fed | None":
        """How a product of one row for each token with something that is not is fed; None for another product."""
        if weight.shape[-1] == len(rows) or not rows.numel():
            return None
        tokens = self._tokens(rows)
        if tokens is None:
            return None
        return _Fed.ALIKE if _are_alike(tokens) else _Fed.APART

    def _tokens(self, rows: Tensor) -> Tensor | None:
        """Those of the rows that are tokens; the first that are alike but for a few tell where others stand."""
        count = len(rows) - self._length
        if count and not self._others.count and 0 < count <= _MOST_OTHERS and not _are_alike(rows):
            found = (before for before in (count, 0) if _are_alike(rows[before : before + self._length]))
            before = next(found, None)
            self._others = self._others if before is None else Others(count, before)
        if count == 0:
            return rows
        others = self._others
        return rows[others.before : others.before + self._length] if count == others.count else None


def _are_alike(rows: Tensor) -> bool:
    apart = (rows - rows[:1]).abs().max()
    return bool(apart <= _ALIKE * torch.finfo(rows.dtype).eps * rows.abs().max())


class _Fed(IntEnum):
    """What a tensor comes of: no projection, projections of equal tokens alone, or one of tokens that differ."""

    NOTHING = 0
    ALIKE = 1
    APART = 2
