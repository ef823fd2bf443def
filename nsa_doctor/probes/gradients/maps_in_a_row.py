"""Linear layers of which one is given what the other gives, with nothing in between and nothing else reading it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import uncompiled, version_of
from nsa_doctor.probes.model.built_module import BuiltModule


@dataclass(frozen=True, kw_only=True)
class InARow:
    """Two layers by their paths, the channels before, between and behind them, and where the second is called."""

    first: str
    second: str
    given: int
    width: int
    made: int
    place: Place


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
    """Every such pair of one module whose width in between is above both others, once."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    layers = {path: part for path, part in sp.module.named_modules() if isinstance(part, nn.Linear)}
    outputs: list[_Output] = []
    found: dict[tuple[str, str], tuple[InARow, Tensor]] = {}

    def before(path: str, layer: nn.Linear, value: object) -> None:
        for earlier in outputs if isinstance(value, Tensor) else ():
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
        if isinstance(value, Tensor):
            outputs.append(_Output(path, layer, value, version_of(value)))

    hooks = []
    for path, layer in layers.items():
        enter: Any = lambda _, given, path=path, layer=layer: before(path, layer, given[0] if given else None)  # noqa: E731
        leave: Any = lambda _, given, value, path=path, layer=layer: after(path, layer, value)  # noqa: E731
        hooks += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    try:
        with torch.enable_grad(), uncompiled(), places.watching():
            output = sp(x)
    finally:
        for hook in hooks:
            hook.remove()
    readers = _readers(output)
    for pair, value in found.values():
        if pair.width > max(pair.given, pair.made) and readers[value.grad_fn] == 1:
            yield pair


def _readers(output: Tensor) -> Counter[object]:
    """How many operations read what each node of the graph gives."""
    counted: Counter[object] = Counter()
    waiting, known = [output.grad_fn], set[object]()
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        for before, _ in node.next_functions:
            counted[before] += 1
            waiting.append(before)
    return counted
