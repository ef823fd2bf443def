"""Linear layers of which one is given what the other gives, with nothing in between and nothing else reading it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, is_transformed, memory_of, uncompiled, version_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_SHAPING = frozenset({"view", "unsafe_view", "reshape", "reshape_alias", "detach", "alias", "unsqueeze", "squeeze"})


@dataclass(frozen=True, kw_only=True)
class InARow:
    """The first and the last layer, the channels before, between and behind, and where the last is called.

    Of more than two, the channels between are the fewest.
    """

    first: str
    second: str
    given: int
    width: int
    made: int
    place: Place
    num_layers: int = 2


@dataclass(frozen=True)
class _Output:
    path: str
    layer: nn.Linear
    value: Tensor
    version: int

    def is_given_to(self, x: Tensor) -> bool:
        """Whether x is that output, which nothing has written to since."""
        is_same = x.data_ptr() == self.value.data_ptr() and x.shape == self.value.shape
        return is_same and x.stride() == self.value.stride() and version_of(x) == self.version


def maps_in_a_row(sp: BuiltModule, x: Tensor) -> Iterator[InARow]:
    """Every such pair of one module whose width in between is above both others, once; and every such row of three or
    more that no layer in between makes narrower than its ends.
    """
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    layers = {path: part for path, part in sp.module.named_modules() if isinstance(part, nn.Linear)}
    outputs: list[_Output] = []
    found: dict[tuple[str, str], tuple[InARow, Tensor]] = {}

    def before(path: str, layer: nn.Linear, value: object) -> None:
        for earlier in outputs if isinstance(value, Tensor) and not is_transformed(value) else ():
            is_beside = earlier.path.rpartition(".")[0] == path.rpartition(".")[0]
            if isinstance(value, Tensor) and is_beside and earlier.path != path and earlier.is_given_to(value):
                pair = InARow(
                    first=earlier.path,
                    second=path,
                    given=earlier.layer.in_features,
                    width=earlier.layer.out_features,
                    made=layer.out_features,
                    place=places.here()[0],
                )
                found[earlier.path, path] = pair, earlier.value

    def after(path: str, layer: nn.Linear, value: object) -> None:
        if isinstance(value, Tensor) and not is_transformed(value):
            outputs.append(_Output(path, layer, value, version_of(value)))

    hooks = []
    for path, layer in layers.items():
        enter: Any = lambda _, given, path=path, layer=layer: before(path, layer, given[0] if given else None)  # noqa: E731
        leave: Any = lambda _, given, value, path=path, layer=layer: after(path, layer, value)  # noqa: E731
        hooks += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    returned: set[int] = set()
    hooks.append(
        sp.module.register_forward_hook(
            lambda _, given, value: returned.update(memory_of(each) for each in tensors_in(value))
        )
    )
    watch = _Readers(outputs)
    try:
        with torch.no_grad(), uncompiled(), places.watching(), watch:
            sp(x)
    finally:
        for hook in hooks:
            hook.remove()
    kept = {memory_of(each) for part in sp.module.modules() for each in tensors_in(vars(part))}
    alone = {
        layers: pair
        for layers, (pair, value) in found.items()
        if watch.counted[memory_of(value)] == 1 and memory_of(value) not in returned | kept
    }
    yield from (pair for pair in alone.values() if pair.width > max(pair.given, pair.made))
    yield from _rows(list(alone.values()))


def _rows(pairs: list[InARow]) -> Iterator[InARow]:
    following = {pair.first: pair for pair in pairs}
    behind = {pair.second for pair in pairs}
    for pair in pairs:
        if pair.first in behind:
            continue
        row = [pair]
        while (then := following.get(row[-1].second)) is not None and then not in row:
            row.append(then)
        width, last = min(each.width for each in row), row[-1]
        if len(row) > 1 and width >= min(pair.given, last.made):
            yield replace(last, first=pair.first, given=pair.given, width=width, num_layers=len(row) + 1)


class _Readers(DispatchWatcher):
    """Counts the operations that are given the memory of an output, those apart that only shape it."""

    def __init__(self, outputs: list[_Output]) -> None:
        super().__init__()
        self.counted: Counter[int] = Counter()
        self._outputs = outputs

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        if operation_name(func) not in _SHAPING:
            known = {memory_of(each.value) for each in self._outputs}
            given = [each for each in tensors_in(args, kwargs) if not is_transformed(each)]
            self.counted.update(known & {memory_of(each) for each in given})
        return func(*args, **kwargs)
