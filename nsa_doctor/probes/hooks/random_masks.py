"""Random masks of one pass: of what is drawn in it, what sets values of an activation to zero or puts others there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, is_transformed, memory_of, untraced
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in, written_arguments

_MOST_BYTES = 1 << 28
_EQUAL = 1e-5
_CHOOSING = frozenset({"randperm", "multinomial"})  # so many of them, and not each by itself
_APPLYING = frozenset({"mul", "masked_fill", "where", "index_put"})
_LIKE = ("_like", "new_", "empty")  # what they are given lends its shape alone
_BY_ELEMENT = frozenset(  # each value of the result is made of the values at its place
    {
        *("lt", "le", "gt", "ge", "eq", "ne", "less", "greater", "mul", "div", "add", "sub", "rsub", "neg", "floor"),
        *("ceil", "round", "to_copy", "copy", "clone", "detach", "alias", "logical_not", "bitwise_not", "bitwise_and"),
        *("bitwise_or", "logical_and", "logical_or", "where", "masked_fill", "fill", "zero", "expand", "view", "t"),
        *("reshape", "unsafe_view", "unsqueeze", "squeeze", "permute", "transpose", "repeat", "lift_fresh", "clamp"),
        *("reciprocal", "native_dropout", "bernoulli", "sign", "clamp_min", "clamp_max", "cat", "stack"),
    }
)


@dataclass(frozen=True)
class Draw:
    """What was drawn at once: its shape, and where."""

    shape: tuple[int, ...]
    place: Place


@dataclass(frozen=True)
class Masking:
    """A random mask where it is applied, smaller than what it is applied to.

    `batch_axis` is the one axis of the result that has as many places as the batch has rows. `dropped` says which
    values of the result are no longer there, zeros where `is_zero`; `is_integer` of ids of tokens.
    """

    operation: str
    place: Place
    draws: tuple[Draw, ...]
    batch_axis: int
    dropped: Tensor
    is_row_lost: Tensor  # [B]: of which nothing is left
    is_zero: bool
    is_integer: bool
    are_rows_alike: bool

    @property
    def at(self) -> tuple[str, str, int]:
        """Which line it is."""
        return self.operation, self.place.file, self.place.line


@dataclass
class Masks:
    """Those of a pass, and how many random masks of any size there were."""

    found: list[Masking] = field(default_factory=list)
    num_applied: int = 0


@contextmanager
def random_masks(module: nn.Module, packages: tuple[str, ...], rows: int) -> Iterator[Masks]:
    """What is applied while the region lasts, in a pass with that many rows."""
    places = Places(FrameFilter(packages))
    places.know(module)
    watcher = _Watcher(places, rows)
    with torch.no_grad(), places.watching(), watcher:
        yield watcher.masks


class _Watcher(DispatchWatcher):
    """Follows what is drawn, and what is made of it and of constants alone, by its memory."""

    def __init__(self, places: Places, rows: int) -> None:
        super().__init__()
        self.masks = Masks()
        self._places, self._rows = places, rows
        self._made: dict[int, tuple[Draw, ...]] = {}  # no draws: a constant
        self._held: list[Tensor] = []  # so that no memory is given out twice
        self._num_bytes = 0

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, and look where it applies a mask."""
        name = operation_name(func).rstrip("_")
        given = [each for each in tensors_in(args, kwargs) if _is_followed(each)]
        drawn = [self._draws_of(each) for each in given]
        masks = [each for each, draws in zip(given, drawn, strict=True) if draws]
        others = [each for each, draws in zip(given, drawn, strict=True) if draws is None]
        is_applied = name in _APPLYING and bool(masks) and bool(others)
        before = [each.clone() for each in others] if is_applied and _is_in_place(func) else others
        result = func(*args, **kwargs)
        if is_applied:
            draws = tuple(dict.fromkeys(one for each in drawn if each for one in each))
            with untraced():
                self._look(name, result, masks, before, draws)
        written = [each for each in tensors_in(written_arguments(func, args, kwargs)) if _is_followed(each)]
        known = {memory_of(each) for each in given}
        results = [each for each in tensors_in(result) if _is_followed(each)]
        made = self._made_by(func, name, drawn, results, bool(written))
        self._learn(made, [*written, *(each for each in results if memory_of(each) not in known)])
        return result

    def _draws_of(self, tensor: Tensor) -> tuple[Draw, ...] | None:
        """What it was drawn by, nothing for a constant; None where it holds anything else."""
        known = self._made.get(memory_of(tensor))
        is_number = tensor.untyped_storage().nbytes() == tensor.itemsize
        return () if known is None and is_number else known

    def _made_by(
        self, func: Any, name: str, drawn: list[tuple[Draw, ...] | None], results: list[Tensor], is_written: bool
    ) -> tuple[Draw, ...] | None:
        """What the results hold: what they were drawn by, nothing for a constant, None for anything else."""
        is_of_shape = any(part in name for part in _LIKE)
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            is_new = is_of_shape or is_written or all(each is not None for each in drawn)
            is_mask = is_new and bool(results) and name not in _CHOOSING
            return (Draw(tuple(results[0].shape), self._places.here()[0]),) if is_mask else None
        if is_of_shape:
            return ()
        made = tuple(dict.fromkeys(one for each in drawn if each for one in each))
        is_known = all(each is not None for each in drawn) and (not made or name in _BY_ELEMENT)
        return made if is_known else None

    def _learn(self, made: tuple[Draw, ...] | None, new: list[Tensor]) -> None:
        """Note it of what was written; a view holds what its memory does."""
        for each in new:
            if made is None:
                self._made.pop(memory_of(each), None)
            else:
                self._made[memory_of(each)] = made
                self._held.append(each)

    def _look(self, name: str, result: Any, masks: list[Tensor], others: list[Tensor], draws: tuple[Draw, ...]) -> None:
        """Keep what the mask does to the one of the others that is as large as the result."""
        if not isinstance(result, Tensor):
            return
        self.masks.num_applied += 1
        axes = [axis for axis, size in enumerate(result.shape) if size == self._rows]
        is_smaller = all(torch.Size(each.shape).numel() < result.numel() for each in draws)
        whole = [each for each in others if each.shape == result.shape]
        if len(axes) != 1 or not is_smaller or not whole or self._num_bytes > _MOST_BYTES:
            return
        if name == "mul" and not all(map(_is_of_zero_and_one_number, masks)):
            return
        x = next((each for each in whole if not _are_alike(each, axes[0])), whole[0])
        dropped = (result == 0) & (x != 0) if name == "mul" else result != x
        is_zero = not bool(result[dropped].any())
        by_row = dropped.movedim(axes[0], 0).flatten(1)
        left = result.movedim(axes[0], 0).flatten(1) != 0
        is_row_lost = by_row.any(1) & ~left.any(1) if is_zero else by_row.double().mean(1) > 0.5
        self._num_bytes += dropped.nbytes
        self.masks.found.append(
            Masking(
                operation=name,
                place=self._places.here()[0],
                draws=draws,
                batch_axis=axes[0],
                dropped=dropped,
                is_row_lost=is_row_lost,
                is_zero=is_zero,
                is_integer=not (result.is_floating_point() or result.is_complex()),
                are_rows_alike=_are_alike(x, axes[0]),
            )
        )


def _is_followed(tensor: Tensor) -> bool:
    return not is_transformed(tensor) and tensor.layout == torch.strided


def _is_in_place(func: Any) -> bool:
    return operation_name(func).endswith("_")


def _are_alike(x: Tensor, axis: int) -> bool:
    first = x.narrow(axis, 0, 1)
    return bool((x == first).all())


def _is_of_zero_and_one_number(mask: Tensor) -> bool:
    kept = mask[mask != 0].double()
    return not kept.numel() or float(kept.max() - kept.min()) <= _EQUAL * float(kept.abs().max())
