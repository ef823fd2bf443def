"""Weights that one pass over all tokens reads and decoding does not, or the other way round."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.tensors.operations import tensors_in

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True)
class ReadInOne:
    """A part of the module whose weights one way alone reads: what is said of it, and the forward that leaves it out.

    No place is known of what decoding leaves out, nor of one of a row of parts, among which a router may choose.
    """

    text: str
    place: Place | None


def read_in_one(root: nn.Module, whole: Callable[[], object], decoding: Callable[[], object]) -> ReadInOne | None:
    """What one of the two leaves out, what the whole pass does first; None where both read the same weights."""
    of_whole, of_decoding = _read(root, whole), _read(root, decoding)
    if left_out := of_decoding - of_whole:
        path = _topmost(root, left_out)
        holder = root.get_submodule(path.rpartition(".")[0])
        place = replace(definition_place(holder), module=path.rpartition(".")[0])
        is_known = bool(place.file) and not type(holder).__module__.startswith("torch.")  # of those routing may choose
        return ReadInOne(f"decoding alone reads {path}, which one pass leaves out", place if is_known else None)
    if left_out := of_whole - of_decoding:
        return ReadInOne(f"one pass alone reads {_topmost(root, left_out)}, which decoding leaves out", None)
    return None


class _Readers(DispatchWatcher):
    """Memory that operations are given."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = set[int]()

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.memory.update(map(memory_of, tensors_in(args, kwargs)))
        return func(*args, **kwargs)


def _read(root: nn.Module, run: Callable[[], object]) -> set[str]:
    """Names of the parameters that it reads."""
    readers = _Readers()
    with torch.no_grad(), readers:
        run()
    return {name for name, each in root.named_parameters() if memory_of(each) in readers.memory}


def _topmost(root: nn.Module, names: Collection[str]) -> str:
    """The largest part around the first of these whose parameters are all among them."""
    first = next(name for name, _ in root.named_parameters() if name in names)
    found, path = first, first.rpartition(".")[0]
    while path and all(f"{path}.{name}" in names for name, _ in root.get_submodule(path).named_parameters()):
        found, path = path, path.rpartition(".")[0]
    return found
