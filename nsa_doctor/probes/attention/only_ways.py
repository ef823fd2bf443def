"""Parts of repeated layers through which all that a module makes of its input goes."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsa_doctor.probes.model.built_module import BuiltModule

_ATTENDING = re.compile(r"atte?nt?ion|attn|attend", re.IGNORECASE)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
_ROUNDINGS = 64
_MOST_STREAMS = 9


@dataclass(frozen=True)
class OnlyWay:
    """A part of one of several layers of a class: with its matrices at zero the output knows nothing of the input."""

    layer: nn.Module
    layer_path: str
    part: str


def only_way(sp: BuiltModule, length: int) -> OnlyWay | None:
    """The first there is, of layers that attend; None where something leads past every part of them."""
    inputs = sp.input(length), sp.input(length, seed=sp.subject.seed + 1)
    with torch.no_grad():
        if _is_alike(sp, inputs):
            return None  # what it gives does not depend on its input anyway
        for path, layer in _layers(sp.module):
            for name, part in _parts(layer):
                with _without_matrices(part) as has_any:
                    is_only = has_any and _is_alike(sp, inputs)
                if is_only and (mixers := _mixers(part)):
                    with _without_matrices(part, mixers) as has_any:
                        is_only = has_any and _is_alike(sp, inputs)
                if is_only and _keeps_shape(sp, part, inputs[0]):  # what does not is no sublayer: patches, a projection
                    return OnlyWay(layer, path, name)
    return None


def _parts(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What a layer is made of; of a list within, which nobody calls, what that is made of."""
    for name, part in layer.named_children():
        if isinstance(part, _CONTAINERS):
            yield from ((f"{name}.{inner}", each) for inner, each in _parts(part))
        else:
            yield name, part


def _keeps_shape(sp: BuiltModule, part: nn.Module, x: Tensor) -> bool:
    """Whether what the part gives has the shape of what it is given, wherever it is called with tensors."""
    shapes: list[tuple[torch.Size, torch.Size]] = []

    def see(_part: nn.Module, given: tuple[object, ...], answer: object) -> None:
        first = answer[0] if isinstance(answer, tuple) and answer else answer
        if given and isinstance(given[0], Tensor) and isinstance(first, Tensor):
            shapes.append((given[0].shape, first.shape))

    handle = part.register_forward_hook(see)
    try:
        sp(x)
    finally:
        handle.remove()
    return all(given == answer for given, answer in shapes)


def has_layers(root: nn.Module) -> bool:
    """Whether it repeats a layer that attends."""
    return next(_layers(root), None) is not None


def _layers(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The first of each row of two or more modules of one class and make that attend and do more than that."""
    for path, holder in root.named_modules():
        rows: dict[object, list[tuple[str, nn.Module]]] = {}
        for name, child in holder.named_children():
            if isinstance(child, _CONTAINERS) and not isinstance(holder, _CONTAINERS):
                continue  # a row of its own, and no layer of one
            rows.setdefault(_make(child), []).append((f"{path}.{name}".removeprefix("."), child))
        for row in rows.values():
            if len(row) > 1 and _attends(row[0][1]):
                yield row[0]


def _make(module: nn.Module) -> object:
    """The class of a module and of its parts: rows of lists are alike where their parts are."""
    return type(module), tuple((name, type(child)) for name, child in module.named_children())


def _attends(layer: nn.Module) -> bool:
    """Whether one of its parts, or its class, is named after attention, and it has another part with weights."""
    named = [
        name for name, part in layer.named_modules() if name and _ATTENDING.search(f"{name} {type(part).__name__}")
    ]
    weighted = [part for part in layer.children() if any(True for _ in part.parameters())]
    return bool(named) and len(weighted) > 1


@contextmanager
def _without_matrices(part: nn.Module, spared: Collection[int] = ()) -> Iterator[bool]:
    """With zeros in every parameter of two or more axes, but those spared by id; whether there is one."""
    matrices = [each for each in part.parameters() if each.dim() > 1 and id(each) not in spared]
    kept = [each.detach().clone() for each in matrices]
    try:
        for each in matrices:
            each.zero_()
        yield bool(matrices)
    finally:
        for each, values in zip(matrices, kept, strict=True):
            each.copy_(values)


def _mixers(part: nn.Module) -> set[int]:
    """Ids of small matrices by which what is around a part with matrices mixes the streams of its residual.

    As those of hyper-connections (arXiv 2409.19606), [streams, streams + 1]: they are the residual.
    """
    around = [
        each for each in part.modules() if any(p.dim() > 1 for child in each.children() for p in child.parameters())
    ]
    own = [each for module in around for each in module.parameters(recurse=False)]
    return {id(each) for each in own if each.dim() == 2 and max(each.shape) <= _MOST_STREAMS}


def _is_alike(sp: BuiltModule, inputs: tuple[Tensor, Tensor]) -> bool:
    """Whether both inputs give one output, but for rounding."""
    first, second = (sp(each).double() for each in inputs)
    size = float(first.abs().max())
    return bool(((first - second).abs() <= _ROUNDINGS * torch.finfo(getattr(torch, sp.dtype)).eps * size).all())
