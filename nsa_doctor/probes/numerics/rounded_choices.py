"""Watches one pass for choices made by values that were rounded just before: sorted, or the largest taken."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name

_MOVES = frozenset(
    (
        *("view", "unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "slice", "select", "transpose"),
        *("permute", "t", "clone", "detach", "alias", "neg", "masked_fill"),
    )
)
_CHOICES = frozenset({"sort", "topk", "argmax", "argmin", "max", "min", "kthvalue"})


@dataclass(frozen=True)
class RoundedChoice:
    """A choice, in words, that would have been another one before its values were rounded, and where they were."""

    what: str
    place: Place


def first_rounded_choice(sp: BuiltModule, x: Tensor) -> RoundedChoice | None:
    """Run the module on x and look for a choice by values cast to less than the module's own precision just before.

    Only casts count that nothing but moves follows: what is computed in half precision on purpose is no slip.
    """
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watcher = _Watcher(places, getattr(torch, sp.dtype))
    with torch.no_grad(), watcher, places.watching():
        sp(x)
    return watcher.found


class _Watcher(DispatchWatcher):
    def __init__(self, places: Places, own: torch.dtype) -> None:
        super().__init__()
        self.found: RoundedChoice | None = None
        self._places, self._own = places, own
        self._exact: dict[int, tuple[Tensor, Tensor, Place]] = {}  # with the tensor: its id is given to no other

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, and again on what its first argument was before it was rounded."""
        result = func(*args, **kwargs)
        if self.found is not None or not args or not isinstance(args[0], Tensor):
            return result
        name, given = operation_name(func).rstrip("_"), args[0]
        _, exact, place = self._exact.get(id(given), (given, None, None))
        if name == "to_copy" and self._is_rounded(given, result):
            self._exact[id(result)] = result, given, self._places.here()[0]
        elif exact is not None and place is not None and name in _MOVES | _CHOICES:
            due = attempt(lambda: func(exact, *args[1:], **kwargs))
            if name in _MOVES and isinstance(due, Tensor) and isinstance(result, Tensor):
                self._exact[id(result)] = result, due, place
            elif name in _CHOICES:
                self._judge(name, exact, result, due, place)
        return result

    def _is_rounded(self, given: Tensor, result: Any) -> bool:
        if not isinstance(result, Tensor) or not result.is_floating_point() or not given.is_floating_point():
            return False
        return given.dtype == self._own and torch.finfo(result.dtype).eps > torch.finfo(given.dtype).eps

    def _judge(self, name: str, exact: Tensor, result: Any, due: Any, place: Place) -> None:
        """Compare what was chosen with what would have been, by the values before they were rounded."""
        chosen, best = _indices(result), _indices(due)
        if chosen is None or best is None or chosen.shape != best.shape:
            return
        differ = _other_sets(exact, chosen, best) if name == "topk" else chosen != best
        if differ.any():
            narrow = str(next(held.dtype for held, wide, _ in self._exact.values() if wide is exact))[6:]
            what = f"{int(differ.sum()):,} of {differ.numel():,} indices of {name} differ"
            self.found = RoundedChoice(f"values are rounded to {narrow} before a choice is made by them: {what}", place)


def _indices(result: Any) -> Tensor | None:
    """The whole numbers that a choice gives."""
    given = result if isinstance(result, tuple | list) else (result,)
    return next((each for each in given if isinstance(each, Tensor) and each.dtype == torch.int64), None)


def _other_sets(values: Tensor, chosen: Tensor, best: Tensor) -> Tensor:
    """Where the values chosen are others than the best, in whatever order; any of equal ones will do."""
    dim = next((d for d in range(values.dim()) if values.shape[d] != chosen.shape[d]), -1)
    return values.gather(dim, chosen).sort(dim=dim).values != values.gather(dim, best).sort(dim=dim).values
