"""The line that hides later keys from every query: a mask whose rows each show one key more than the row before."""

from collections.abc import Iterator

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.recording import Operation, record
from nsa_doctor.probes.model.built_module import BuiltModule

_FEWEST_ROWS, _SHARE = 8, 0.75  # of a mask, and of its rows, for those of a block or a window end at its edge
_MOST_ELEMENTS = 1 << 20
_HIDING = -1e4  # a score so low is none


def hidden_future(sp: BuiltModule, x: Tensor) -> Place | None:
    """Where a pass first makes or reads a mask under which no query sees a later key; None where it does neither."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    recording = record(lambda: sp(x), places)
    return next((each.place for each in recording.operations if each.place.file and _hides_later(each)), None)


def _hides_later(operation: Operation) -> bool:
    return any(is_staircase(marks) for tensor in operation.results for marks in _marked(tensor))


def _marked(tensor: Tensor) -> Iterator[Tensor]:
    """What a tensor may mark, if it is a mask: what it names, what it does not, and scores that are none."""
    if tensor.ndim < 2 or min(tensor.shape[-2:]) < _FEWEST_ROWS or tensor.numel() > _MOST_ELEMENTS:
        return
    if tensor.dtype == torch.bool:
        yield from (tensor, ~tensor)
    elif tensor.is_floating_point():
        yield from (tensor <= _HIDING, tensor == 0)


def is_staircase(marks: Tensor) -> bool:
    """Whether marks [..., Q, K] fill the end of each row, by one less than in the row before."""
    at_end = marks.flip(-1).cumprod(-1).sum(-1)
    is_less_by_one = at_end[..., :-1] - at_end[..., 1:] == 1
    return bool((is_less_by_one.double().mean(-1) >= _SHARE).any())
