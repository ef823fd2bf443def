"""Where a module in half precision raises a value to float32 by itself and does not take it back."""

import re
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
_OF_TWO_TYPES = re.compile(r"same dtype|scalar type|expected m1 and m2|type \(.*\) and .* type", re.IGNORECASE)


def promoted_at(subject: Subject, half: str, length: int) -> tuple[Place, str] | None:
    """The line whose result is float32 for one operand that was raised, and what a later operation then raises.

    None for a module that runs, or that raises something else.
    """
    sp = built(subject, dtype=half)
    places = Places(FrameFilter(subject.packages))
    places.know(sp.module)
    watch = _Watch(places)
    try:
        with torch.no_grad(), unobserved(), places.watching(), watch:
            sp(sp.input(length))
    except SubjectFailedError as failure:
        said = failure.caught.sentence
        return (watch.place, said) if watch.place is not None and _OF_TWO_TYPES.search(said) else None
    return None


class _Watch(DispatchWatcher):
    """Follows what the subject's own lines raise, by identity, and where it met what is in half precision.

    `place` is that of what the operation was given that raises.
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.place: Place | None = None
        self._places = places
        self._raised: dict[int, tuple[Tensor, Place | None]] = {}  # alive, or another tensor would get its number

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        given = [each for each in tensors_in(args, kwargs) if each.is_floating_point()]
        known = [self._raised[id(each)][1] for each in given if id(each) in self._raised]
        self.place = next((place for place in known if place is not None), None)  # stays where this raises
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
            self._raised.update((id(each), (each, place)) for each in made)
