"""Linear layers of which one is given what the other gives, with nothing in between and nothing else reading it."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, hooks_of, is_transformed, memory_of, uncompiled, version_of
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


@dataclass(eq=False)
class _Output:
    """What one call of a layer gave: `given` is the output that it was given, if it was, and where that was."""

    path: str
    layer: nn.Linear
    value: Tensor
    version: int
    given: "_Output | None" = None
    place: Place = field(default_factory=Place)

    def is_given_to(self, x: Tensor) -> bool:
        """Whether x is that output, which nothing has written to since."""
        is_same = x.data_ptr() == self.value.data_ptr() and x.shape == self.value.shape
        return is_same and x.stride() == self.value.stride() and version_of(x) == self.version


def maps_in_a_row(sp: BuiltModule, x: Tensor) -> Iterator[InARow]:
    """Every such pair of one module whose width in between is above both others, once.

    In place of those in it, every row of three or more that no layer makes narrower than the narrower of its ends.
    """
    outputs, returned, counted = _watched(sp, x)
    kept = {memory_of(each) for part in sp.module.modules() for each in tensors_in(vars(part))}
    for each in outputs:
        before = each.given
        if before is not None:
            memory = memory_of(before.value)
            each.given = before if counted[memory] == 1 and memory not in returned | kept else None
    followed = {id(each.given) for each in outputs}
    found: dict[tuple[str, str, int], InARow] = {}
    for row in [_row_to(last) for last in outputs if id(last) not in followed and last.given is not None]:
        whole = _as_row(row)
        is_whole = len(row) > 2 and whole.width >= min(whole.given, whole.made)
        pairs = [whole] if is_whole else [_as_row(list(pair)) for pair in itertools.pairwise(row)]
        for pair in pairs:
            if is_whole or pair.width > max(pair.given, pair.made):
                found.setdefault((pair.first, pair.second, pair.num_layers), pair)
    yield from found.values()


def _row_to(last: _Output) -> list[_Output]:
    row = [last]
    while (before := row[0].given) is not None:
        row.insert(0, before)
    return row


def _as_row(row: Sequence[_Output]) -> InARow:
    return InARow(
        first=row[0].path,
        second=row[-1].path,
        given=row[0].layer.in_features,
        width=min(each.layer.out_features for each in row[:-1]),
        made=row[-1].layer.out_features,
        place=row[-1].place,
        num_layers=len(row),
    )


def _watched(sp: BuiltModule, x: Tensor) -> tuple[list[_Output], set[int], Counter[int]]:
    """What linear layers gave in one pass, the memory that the module returned, and how often outputs were read."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    outputs: list[_Output] = []
    entered: list[tuple[_Output | None, Place]] = []

    def before(path: str, value: object) -> None:
        given = None
        for earlier in outputs if isinstance(value, Tensor) and not is_transformed(value) else ():
            is_beside = earlier.path.rpartition(".")[0] == path.rpartition(".")[0]
            if isinstance(value, Tensor) and is_beside and earlier.path != path and earlier.is_given_to(value):
                given = earlier
        entered.append((given, places.here()[0]))

    def after(path: str, layer: nn.Linear, value: object) -> None:
        given, place = entered.pop()
        if isinstance(value, Tensor) and not is_transformed(value):
            outputs.append(_Output(path, layer, value, version_of(value), given, place))

    hooks = []
    for path, layer in sp.module.named_modules():
        if not isinstance(layer, nn.Linear) or not _is_plain(layer):
            continue
        enter: Any = lambda _, given, path=path: before(path, given[0] if given else None)  # noqa: E731
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
    return outputs, returned, watch.counted


def _is_plain(layer: nn.Linear) -> bool:
    """Whether it is a linear map and no more: a class of its own or a hook may do what is not linear."""
    return type(layer).forward is nn.Linear.forward and not any(hooks_of(layer))


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
