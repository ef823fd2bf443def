"""Tables of positions that are added to tokens, and hold every column twice: half of what they could tell."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_ADDS, _MAKING, _COPYING = frozenset({"add", "add_"}), frozenset({"cat", "stack"}), frozenset({"to_copy", "clone"})
_FEWEST_CHANNELS, _FEWEST_DISTINCT = 8, 4


@dataclass(frozen=True)
class DoubledTable:
    """A table of `channels` columns of which `distinct` are unlike, and the line that makes or adds it."""

    channels: int
    distinct: int
    place: Place


class _Watch(DispatchWatcher):
    """Keeps what is added to tokens [B, S, D] and has no rows of a batch: [S, D] or [1, S, D]."""

    def __init__(self, places: Places, length: int) -> None:
        super().__init__()
        self.added: list[tuple[Tensor, Place]] = []
        self._places, self._length = places, length
        self._makers: dict[int, Place] = {}
        self._alive: list[Tensor] = []  # or their memory would be given to another

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, and look at what is added."""
        name, given = operation_name(func), tensors_in(args, kwargs)
        if name in _ADDS and len(given) == 2:
            for table, tokens in (given, given[::-1]):
                if self._is_table(table, tokens):
                    place = self._makers.get(memory_of(table), self._places.here()[0])
                    self.added.append((table.detach().clone(), place))
        result = func(*args, **kwargs)
        copied = self._makers.get(memory_of(given[0])) if name in _COPYING and given else None
        if (name in _MAKING or copied is not None) and isinstance(result, Tensor):
            self._makers[memory_of(result)] = copied or self._places.here()[0]
            self._alive.append(result)
        return result

    def _is_table(self, table: Tensor, tokens: Tensor) -> bool:
        if tokens.ndim != 3 or len(tokens) < 2 or table.ndim < 2:
            return False
        length, channels = table.shape[-2:]
        is_of_positions = length == self._length != channels  # a mask has a key for each query
        return is_of_positions and table.shape[-2:] == tokens.shape[-2:] and table.numel() == length * channels


def doubled_table(sp: BuiltModule, length: int) -> DoubledTable | None:
    """The first that is added whatever the input is, and each of whose columns there are two of or more.

    They begin alike, as waves of one kind do: a table of both kinds may well be repeated, for each head.
    """
    passes: list[list[tuple[Tensor, Place]]] = []
    for seed in range(2):
        places = Places(FrameFilter(sp.subject.packages))
        places.know(sp.module)
        watch = _Watch(places, length)
        with torch.no_grad(), places.watching(), watch:
            sp(sp.input(length, 2, seed=sp.subject.seed + seed))
        passes.append(watch.added)
    for (table, place), (again, _) in zip(*passes, strict=False):
        columns = table.reshape(table.shape[-2:]).T
        if len(columns) < _FEWEST_CHANNELS or not torch.equal(table, again) or bool((columns == columns[:, :1]).all()):
            continue
        distinct, counts = torch.unique(columns, dim=0, return_counts=True)
        varies = (distinct != distinct[:, :1]).any(1)
        is_one_kind = bool((distinct[:, 0] == distinct[0, 0]).all())
        if bool(varies.all()) and is_one_kind and len(distinct) >= _FEWEST_DISTINCT and int(counts.min()) > 1:
            return DoubledTable(len(columns), len(distinct), place)
    return None
