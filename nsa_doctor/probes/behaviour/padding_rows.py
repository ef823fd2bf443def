"""Embeddings whose row of padding is not zero, who wrote it, and whether tokens beside padding differ by it."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.tensors.operations import operation_name
from nsa_doctor.subject.contract import Subject


@dataclass(frozen=True)
class PaddingRow:
    """The row `number` of the embedding at that path, which is not zero as the module is built."""

    path: str
    number: int
    place: Place


def padding_rows(subject: Subject) -> list[PaddingRow]:
    """Those of embeddings that are not zero; of a weight that parts share none is.

    The place is the line that wrote last into the weight while the module was built.
    """
    places = Places(FrameFilter(subject.packages))
    with places.watching(), (watch := _Writes(places)):
        module = subject.build(subject.seed)
    named = [(path, each) for path, each in module.named_modules() if isinstance(each, nn.Embedding)]
    padded = [(path, each) for path, each in named if each.padding_idx is not None and not _is_shared(module, each)]
    return [
        PaddingRow(path, int(each.padding_idx or 0), watch.places_of.get(memory_of(each.weight), Place()))
        for path, each in padded
        if bool(each.weight[each.padding_idx].any())
    ]


def departure_with(sp: BuiltModule, row: PaddingRow, length: int, num_padding: int) -> Departure | None:
    """How tokens with that id behind them [2, length] differ from those with a row of zeros.

    Where the subject takes a mask of padding, it is given one.
    """
    padded = sp.subject.padded
    if padded is not None:
        masked = replace(sp.subject, forward=lambda module, ids: padded(module, ids, ids != row.number))
        sp = replace(sp, subject=masked)
    x = sp.input(length + num_padding, batch=2)
    x = torch.where(x == row.number, (x + 1) % sp.subject.width, x)
    x[:, length:] = row.number
    base = baseline(sp, x)
    weight = sp.module.get_submodule(row.path).weight
    assert isinstance(weight, Tensor)
    with torch.no_grad():
        kept = weight[row.number].clone()
        weight[row.number] = 0
        try:
            output = sp(x)[:, :length].clone()
        finally:
            weight[row.number] = kept
    return base.departure(output, slice(None), slice(length))


def _is_shared(root: nn.Module, embedding: nn.Embedding) -> bool:
    """Whether another part has the same weight, through which the row is trained."""
    holders = (each for each in root.modules() for held in each.parameters(recurse=False) if held is embedding.weight)
    return sum(1 for _ in holders) > 1


class _Writes(DispatchWatcher):
    """Where the subject wrote last into each piece of memory."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places_of: dict[int, Place] = {}
        self._places = places

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; note what it writes into."""
        result = func(*args, **kwargs)
        if operation_name(func).endswith("_") and args and isinstance(args[0], Tensor):
            place, is_own = self._places.here()
            if is_own:
                self.places_of[memory_of(args[0])] = place
        return result
