"""Weights that one pass over all tokens reads and decoding does not, or the other way round."""

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, part_at
from nsa_doctor.probes.tensors.operations import tensors_in


@dataclass(frozen=True)
class ReadInOne:
    """A part of the module whose weights one way alone reads: what is said of it, and the forward that leaves it out.

    No place is known of what decoding leaves out.
    """

    text: str
    place: Place | None


def read_in_one(root: nn.Module, whole: Callable[[], object], decoding: Callable[[], object]) -> ReadInOne | None:
    """What one of the two leaves out, what the whole pass does first; None where both read the same weights.

    Nothing is said of one of a row of parts whose others are read: a router chooses otherwise where what it is given
    departs, whyever that is.
    """
    of_whole, of_decoding = _read(root, whole), _read(root, decoding)
    if (path := _left_out(root, of_decoding, of_whole)) is not None:
        holder = path.rpartition(".")[0]
        place = replace(definition_place(part_at(root, holder)), module=holder)
        is_known = bool(place.file) and not _is_torchs(part_at(root, holder))
        return ReadInOne(f"decoding alone reads {path}, which one pass leaves out", place if is_known else None)
    if (path := _left_out(root, of_whole, of_decoding)) is not None:
        return ReadInOne(f"one pass alone reads {path}, which decoding leaves out", None)
    return None


def _left_out(root: nn.Module, read: Set[str], elsewhere: Set[str]) -> str | None:
    """The first part that is read and not elsewhere, of those among which nothing chooses."""
    left_out = read - elsewhere
    for name, _ in root.named_parameters():
        if name in left_out:
            path = _topmost(root, name, left_out)
            holder = path.rpartition(".")[0]
            is_of_row = _is_torchs(part_at(root, holder)) and any(each.startswith(f"{holder}.") for each in elsewhere)
            if not is_of_row:
                return path
    return None


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


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


def _topmost(root: nn.Module, first: str, names: Set[str]) -> str:
    """The largest part around the first of these whose parameters are all among them."""
    found, path = first, first.rpartition(".")[0]
    while path and all(f"{path}.{name}" in names for name, _ in part_at(root, path).named_parameters()):
        found, path = path, path.rpartition(".")[0]
    return found
