"""Embeddings whose row of padding was drawn again, by whom, and whether tokens beside padding differ by it."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, part_at
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.training import forward_backward
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
    """Those of embeddings that something drew again while the module was built: the place is its line.

    What is copied there, or given, as vectors that were trained elsewhere, is left alone, and what is not trained.
    """
    places = Places(FrameFilter(subject.packages))
    with places.watching(), (watch := _Writes(places)):
        module = subject.build(subject.seed)
    named = [(path, each) for path, each in module.named_modules() if isinstance(each, nn.Embedding)]
    padded = [(path, each) for path, each in named if each.padding_idx is not None and each.weight.requires_grad]
    return [
        PaddingRow(path, int(each.padding_idx or 0), place)
        for path, each in padded
        if (place := watch.places_of.get(memory_of(each.weight))) and bool(each.weight[each.padding_idx].any())
    ]


def is_trained(sp: BuiltModule, row: PaddingRow, length: int) -> bool:
    """Whether the row gets a gradient from tokens [2, length] of which some are padding, or where that is not known."""
    x = sp.input(length, batch=2).clone()
    x[:, ::3] = row.number
    passed = attempt(lambda: forward_backward(sp, x))
    gradient = None if isinstance(passed, Caught) else passed.gradients.get(f"{row.path}.weight")
    return gradient is None or bool(gradient[row.number].any())


def is_fed(sp: BuiltModule, row: PaddingRow, length: int) -> bool:
    """Whether the embedding is given the ids themselves."""
    x = sp.input(length, batch=2)
    given: list[bool] = []
    handle = part_at(sp.module, row.path).register_forward_hook(
        lambda _module, args, _answer: given.append(bool(args) and _are_ids(args[0], x))
    )
    try:
        with torch.no_grad():
            sp(x)
    finally:
        handle.remove()
    return any(given)


def _are_ids(given: Any, x: Tensor) -> bool:
    return isinstance(given, Tensor) and given.shape == x.shape and bool((given == x).all())


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
    weight = part_at(sp.module, row.path).weight
    assert isinstance(weight, Tensor)
    with torch.no_grad():
        kept = weight[row.number].clone()
        weight[row.number] = 0
        try:
            output = sp(x)[:, :length].clone()
        finally:
            weight[row.number] = kept
    return base.departure(output, slice(None), slice(length))


class _Writes(DispatchWatcher):
    """Where the subject wrote last into each piece of memory, unless it was a copy of something."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places_of: dict[int, Place] = {}
        self._places = places
        self._alive: list[Tensor] = []  # or memory would be given to another tensor

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; note what it writes into."""
        result = func(*args, **kwargs)
        name = operation_name(func)
        if name.endswith("_") and args and isinstance(args[0], Tensor):
            self._alive.append(args[0])
            self.places_of.pop(memory_of(args[0]), None)
            place, is_own = self._places.here()
            if is_own and name != "copy_":
                self.places_of[memory_of(args[0])] = place
        return result
