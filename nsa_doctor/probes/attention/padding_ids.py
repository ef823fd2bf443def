"""Ids that a subject hides by itself, as padding: it compares its input with one, and attends to no such token."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.recording import Operation
from nsa_doctor.probes.internal import uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.divergence import recording_of

_COMPARING = frozenset({"eq", "ne", "not_equal", "__eq__", "__ne__"})
_ROUNDINGS, _APART = 256.0, 1e-3
_FAR_BELOW = -1e4  # of a score, whose weight then is none


def compared_ids(sp: BuiltModule, x: Tensor) -> Mapping[int, Place]:
    """The ids that the subject compares those that it is given with, each with the first line that does."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Comparisons(x, places)
    with torch.no_grad(), uncompiled(), places.watching(), watch:
        sp(x)
    return {number: place for number, place in watch.found.items() if 0 <= number < sp.subject.width}


def is_hidden(sp: BuiltModule, draws: Sequence[tuple[Tensor, Tensor]], num_padding: int) -> bool:
    """Whether it is that id that keeps tokens from attending to the last ones of x [1, S].

    Of each draw the first holds the id there, and the second others, which somebody attends to.
    """
    return all(_is_hidden(sp, x, num_padding) and not _is_hidden(sp, other, num_padding) for x, other in draws)


def deaf_rows(
    sp: BuiltModule, number: int, length: int, num_padding: int, num_draws: int
) -> tuple[Tensor, Tensor] | None:
    """Two rows behind so many tokens of that id that get one answer, while behind a row the id changes nothing.

    None where some of the draws do not, and of a subject whose tokens have answers of their own: an id that ends a text
    may change all that follow.
    """
    rows = [_deaf_rows(sp, number, length, num_padding, sp.subject.seed + 2 * draw) for draw in range(num_draws)]
    return rows[0] if None not in rows else None


def _deaf_rows(sp: BuiltModule, number: int, length: int, num_padding: int, seed: int) -> tuple[Tensor, Tensor] | None:
    one, other = (without_id(sp.input(length, seed=seed + shift), number, sp.subject.width) for shift in (0, 1))
    padding = torch.full_like(one[:, :1], number).expand(-1, num_padding)
    alone = sp(one)
    size = float(alone.abs().max())
    close = _ROUNDINGS * torch.finfo(alone.dtype).eps * size

    def is_near(some: Tensor, others: Tensor, most: float) -> bool:
        return float((some - others).abs().max()) <= most

    if not is_near(alone, alone[:, :1].expand_as(alone), 0.0) or is_near(alone, sp(other), _APART * size):
        return None
    if not is_near(alone, sp(torch.cat((one, padding), 1))[:, :length], close):
        return None
    rows = torch.cat((padding, one), 1), torch.cat((padding, other), 1)
    return rows if is_near(sp(rows[0])[:, num_padding:], sp(rows[1])[:, num_padding:], close) else None


def without_id(ids: Tensor, number: int, width: int) -> Tensor:
    """The ids with the next one in the place of that."""
    return torch.where(ids == number, (ids + 1) % width, ids)


def _is_hidden(sp: BuiltModule, x: Tensor, num_padding: int) -> bool:
    """Whether no token before the last attends to one of them, somewhere: their weights are zero, or a mask says so."""
    with taken_apart():
        recording = recording_of(sp, lambda: sp(x))
    return any(_hides(each, x.shape[1], num_padding) for each in recording.operations)


@contextmanager
def taken_apart() -> Iterator[None]:
    """Layers of torch's own are not run by one operation meanwhile."""
    was_on = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_on)


def _hides(operation: Operation, length: int, num_padding: int) -> bool:
    """Whether weights that an operation gives, or a mask that it is given, leave out the last keys, and no others."""
    return any(_leaves_out(each, length, num_padding) for each in shown_by(operation))


def shown_by(operation: Operation) -> list[Tensor]:
    """Which keys an operation shows each query [..., Q, K]: by weights that it gives, or by a mask that it is given."""
    if "softmax" in operation.name:
        return [each != 0 for each in operation.results]
    if "attention" not in operation.name:
        return []
    masks = [each for _, each in operation.read[3:]]  # behind q, k and v
    return [each if each.dtype == torch.bool else each > _FAR_BELOW for each in masks]


def _leaves_out(shown: Tensor, length: int, num_padding: int) -> bool:
    """Whether every query but the last, which are padding too, is shown keys, and none of the last."""
    if shown.ndim < 2 or shown.shape[-1] < length:
        return False
    queries = shown if shown.shape[-2] < length else shown[..., :-num_padding, :]
    return not bool(queries[..., -num_padding:].any()) and bool(queries[..., :-num_padding].any(-1).all())


class _Comparisons(TorchFunctionMode):
    """Sees each comparison of the input, or of a copy of it, with a number."""

    def __init__(self, x: Tensor, places: Places) -> None:
        super().__init__()
        self.found: dict[int, Place] = {}
        self._x, self._places = x, places

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function."""
        if getattr(func, "__name__", "") in _COMPARING and len(args) == 2:
            attempt(lambda: self._look(*args))
        return func(*args, **(kwargs or {}))

    def _look(self, one: Any, other: Any) -> None:
        for given, number in ((one, other), (other, one)):
            is_number = (isinstance(number, int) and not isinstance(number, bool)) or (
                isinstance(number, Tensor) and number.ndim == 0 and not number.is_floating_point()
            )
            is_input = isinstance(given, Tensor) and given.shape == self._x.shape and not given.is_floating_point()
            if is_number and is_input and torch.equal(given.long(), self._x):
                self.found.setdefault(int(number), self._places.here()[0])
