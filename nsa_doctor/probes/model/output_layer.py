"""The linear layer that gives a module's logits: its weight, and how large what it is given and makes is."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear"})
_LOOKING_UP = frozenset({"embedding", "embedding_bag", "index", "index_select"})
_RESHAPING = frozenset({"to_copy", "t", "transpose", "clone", "detach", "view", "mul", "div", "unsqueeze", "expand"})


@dataclass(frozen=True, kw_only=True)
class OutputLayer:
    """The weight [V, fan_in], in either order, of the last product on the way to the logits, and how large they are.

    `given` is the root mean square of what it is given, `made` the standard deviation of what it makes. `is_tied` says
    that tokens are embedded by the same values.
    """

    name: str
    weight: Tensor
    fan_in: int
    given: float
    made: float
    place: Place
    is_tied: bool


def logits_of(sp: BuiltModule, x: Tensor) -> tuple[Tensor, OutputLayer | None]:
    """The output for tokens x, and the layer that gives it; None where it is not one product with a parameter."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Products(sp.module, places, sp.subject.width)
    with torch.no_grad(), places.watching(), watch:
        output = sp(x)
    layer = watch.made.get(memory_of(output))
    return output, layer and replace(layer, is_tied=memory_of(layer.weight) in watch.embedding)


class _Products(DispatchWatcher):
    """Follows parameters to products, and products to what is made of them by itself."""

    def __init__(self, module: nn.Module, places: Places, width: int) -> None:
        super().__init__()
        self.made: dict[int, OutputLayer] = {}
        self._places, self._width = places, width
        self._weights = {memory_of(each): (name, each) for name, each in module.named_parameters() if each.ndim > 1}
        self._parameters = {memory_of(each) for each in (*module.parameters(), *module.buffers())}
        self.embedding = {
            memory_of(part.weight)
            for part in module.modules()
            if isinstance(part, nn.Embedding) and memory_of(part.weight) in self._weights
        }
        self._alive: list[Tensor] = []  # or memory would be given to another tensor

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what its result is made of."""
        result, name, given = func(*args, **kwargs), operation_name(func), tensors_in(args, kwargs)
        known = [self._weights.get(memory_of(each)) for each in given]
        if name in _LOOKING_UP and known[0] is not None:
            self.embedding.add(memory_of(known[0][1]))
        for made in tensors_in(result):
            layer = self._product(given, known, made) if name in _PRODUCTS else self._alone(given, made)
            first = known[0] if known else None
            if name in _RESHAPING and first is not None and made.numel() == first[1].numel():
                self._weights[memory_of(made)] = first
            if layer is not None:
                self.made[memory_of(made)] = layer
            else:
                self.made.pop(memory_of(made), None)
            self._alive.append(made)
        return result

    def _product(self, given: list[Tensor], known: list[Any], made: Tensor) -> OutputLayer | None:
        factors, weights = given[-2:], known[-2:]
        if sum(each is not None for each in weights) != 1:
            return None
        values, width = factors[0] if weights[0] is None else factors[1], made.shape[-1]
        name, weight = weights[0] or weights[1]
        if width < self._width == values.shape[-1]:  # of ids that are given as rows of zeros and a one
            self.embedding.add(memory_of(weight))
        if width < self._width or weight.numel() % width or values.numel() == 0:
            return None
        return OutputLayer(
            name=name,
            weight=weight,
            fan_in=weight.numel() // width,
            given=float(values.double().square().mean().sqrt()),
            made=float(made.double().std(-1).mean()),
            place=self._places.here()[0],
            is_tied=False,
        )

    def _alone(self, given: list[Tensor], made: Tensor) -> OutputLayer | None:
        """The layer behind what this was made of, where nothing else of its size was added to it."""
        layers = [self.made.get(memory_of(each)) for each in given]
        found = next((layer for layer in layers if layer is not None), None)
        others = [each for each, layer in zip(given, layers, strict=True) if layer is not found and each.ndim > 1]
        is_mixed = any(
            each.numel() >= made.numel() and each.is_floating_point() and memory_of(each) not in self._parameters
            for each in others
        )
        return found if made.is_floating_point() and not is_mixed else None
