"""Sines, or cosines, that a weight projects and that hold every column twice: half of what they could tell."""

from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.doubled_tables import DoubledTable
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places, in_subject
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, version_of
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in, written_arguments
from nsa_doctor.subject.contract import Subject

_WAVES, _JOINING, _PRODUCTS = (
    frozenset({"sin", "cos"}),
    frozenset({"cat", "stack", "copy_"}),
    frozenset({"mm", "addmm"}),
)
_KEEPING = frozenset(
    {
        *("view", "unsafe_view", "reshape", "reshape_alias", "transpose", "t", "permute", "slice", "select", "expand"),
        *(
            "unsqueeze",
            "squeeze",
            "unbind",
            "split",
            "split_with_sizes",
            "alias",
            "repeat",
            "clone",
            "to_copy",
            "detach",
        ),
        *("index", "index_select", "embedding", "neg", "mul", "mul_", "div", "div_", "lift_fresh"),
    }
)
_FEWEST_CHANNELS, _FEWEST_DISTINCT = 8, 4


def doubled_features(subject: Subject, length: int) -> DoubledTable | None:
    """The first table of one kind of waves that is projected and each of whose columns there are two of or more."""
    places = Places(FrameFilter(subject.packages))
    watch = _Watch(places)
    with places.watching(), watch:
        sp = comparable_module(subject)
    places.know(sp.module)
    with torch.no_grad(), unobserved(), places.watching(), watch:
        watch.is_varied = True
        attempt(lambda: sp(sp.input(length, 2)))
    weights = {memory_of(each) for each in sp.module.parameters()}
    for rows, weight, place in watch.projected:
        distinct = _distinct(rows)
        if weight in weights and distinct:
            return DoubledTable(rows.shape[-1], distinct, in_subject(place, sp.module))
    return None


def _distinct(rows: Tensor) -> int:
    """How many of the columns [N, C] are unlike where there are two of each or more; 0 for other rows."""
    if rows.shape[-1] < _FEWEST_CHANNELS or (len(rows) > 1 and bool((rows == rows[:1]).all(0).any())):
        return 0
    distinct, counts = torch.unique(rows, dim=1, return_counts=True)
    return distinct.shape[1] if distinct.shape[1] >= _FEWEST_DISTINCT and int(counts.min()) > 1 else 0


class _Watch(DispatchWatcher):
    """Follows what is made of sines alone, or of cosines alone, to the weights that project it.

    Waves of what is the same in all rows, as of a time that is 0 where none is given, tell nothing apart: `is_varied`
    takes them of other angles.
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.projected: list[tuple[Tensor, int, Place]] = []
        self.is_varied = False
        self._places = places
        self._made: dict[int, tuple[frozenset[str], Place]] = {}  # the waves that memory holds, and who put them there
        self._alive: list[Tensor] = []  # or their memory would be given to another
        self._moves: dict[tuple[object, ...], Tensor] = {}

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, and look at what is projected."""
        name, given = operation_name(func), tensors_in(args, kwargs)
        if name in _WAVES:
            result = func(self._varied(given[0]))
            self._keep(result, (frozenset({name}), self._places.here()[0]))
            return result
        made = [self._made.get(memory_of(each)) for each in given if each.is_floating_point() and each.numel() > 1]
        if name in _PRODUCTS and (known := self._made.get(memory_of(given[-2]))) is not None and len(known[0]) == 1:
            self.projected.append((given[-2].detach().clone(), memory_of(given[-1]), known[1]))
        result = func(*args, **kwargs)
        if name in _JOINING:
            made = made[1:] if name == "copy_" else made
        elif name not in _KEEPING:
            made = []
        known_made = [each for each in made if each is not None]
        if known_made and len(known_made) == len(made):
            waves = frozenset[str]().union(*(waves for waves, _ in known_made))
            written = tensors_in(written_arguments(func, args, kwargs))
            for each in written:
                waves |= self._made.get(memory_of(each), (frozenset[str](), None))[0]
            place = self._places.here()[0] if name in _JOINING else known_made[0][1]
            for each in (*tensors_in(result), *written):
                self._keep(each, (waves, place))
        return result

    def _keep(self, tensor: Tensor, made: tuple[frozenset[str], Place]) -> None:
        self._made[memory_of(tensor)] = made
        self._alive.append(tensor)

    def _varied(self, angles: Tensor) -> Tensor:
        """The angles, or others where all rows have the same: one tensor has the same others every time."""
        is_table = angles.is_floating_point() and angles.ndim > 1 and angles.shape[-1] >= _FEWEST_DISTINCT
        rows = angles.reshape(-1, angles.shape[-1]) if is_table and angles.numel() else None
        if not self.is_varied or rows is None or not bool((rows == rows[:1]).all()):
            return angles
        key = (memory_of(angles), version_of(angles), angles.storage_offset(), angles.shape, angles.stride())
        if key not in self._moves:
            generator = torch.Generator().manual_seed(len(self._moves))
            drawn = torch.randn(angles.shape, generator=generator, dtype=torch.float64, device="cpu")
            self._moves[key] = drawn.to(angles)
            self._alive.append(angles)
        return angles + self._moves[key]
