"""Where a module in half precision raises a value to float32 by itself and does not take it back."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, untraced
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in
from nsa_doctor.subject.contract import Subject

_HALVES = (torch.bfloat16, torch.float16)
_MEANS = frozenset({"mean", "var", "var_mean", "std", "linalg_vector_norm", "norm"})
_OF_TWO_TYPES = re.compile(r"same dtype|scalar type|expected m1 and m2|type \(.*\) and .* type", re.IGNORECASE)


@dataclass(frozen=True)
class Promoted:
    """Where what was raised meets half precision, what a later operation raises, and whether it is a norm's."""

    place: Place
    raised: str
    is_of_norm: bool


def promoted_at(subject: Subject, half: str, length: int) -> Promoted | None:
    """What the module raises to float32 and does not take back; None for one that runs, or raises something else."""
    sp = built(subject, dtype=half)
    places = Places(FrameFilter(subject.packages))
    places.know(sp.module)
    watch = _Watch(places)
    try:
        with torch.no_grad(), unobserved(), places.watching(), watch:
            sp(sp.input(length))
    except SubjectFailedError as failure:
        said = failure.caught.sentence
        if watch.place is not None and _OF_TWO_TYPES.search(said):
            return Promoted(watch.place, said, watch.is_of_norm)
    return None


class _Watch(DispatchWatcher):
    """Follows what the subject's own lines raise, by identity, and where it met what is in half precision.

    `place` is that of what the operation was given that raises, `is_of_norm` whether a mean of it was taken before.
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.place: Place | None = None
        self.is_of_norm = False
        self._places = places
        # Alive, or another tensor would get its number.
        self._raised: dict[int, tuple[Tensor, Place | None, bool]] = {}

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        given = [each for each in tensors_in(args, kwargs) if each.is_floating_point()]
        known = [self._raised[id(each)] for each in given if id(each) in self._raised]
        self.place = next((place for _, place, _ in known if place is not None), None)  # stays where this raises
        self.is_of_norm = any(is_of_norm for *_, is_of_norm in known)
        result = func(*args, **kwargs)
        made = [each for each in tensors_in(result) if each.dtype == torch.float32]
        if made and given:
            with untraced():
                self._follow(operation_name(func), given, made, is_of_raised=bool(known))
        return result

    def _follow(self, name: str, given: list[Tensor], made: list[Tensor], *, is_of_raised: bool) -> None:
        has_half = any(each.dtype in _HALVES and each.ndim > 0 for each in given)
        place = self.place
        if is_of_raised and has_half and place is None:
            here, is_found = self._places.here()
            place = here if is_found else None
        if is_of_raised or (name == "to_copy" and has_half and self._places.here()[1]):
            is_of_norm = self.is_of_norm or (is_of_raised and name in _MEANS)
            self._raised.update((id(each), (each, place, is_of_norm)) for each in made)
