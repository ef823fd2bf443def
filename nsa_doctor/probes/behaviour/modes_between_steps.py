"""Parts that run in training mode in one call and in evaluation mode in the next, and the line that switches them."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from unittest.mock import patch

from torch import nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule

_DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_OF_BATCHES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class LeftInEvaluation:
    """The parts by path whose results depend on the mode, and the line that put them into evaluation mode."""

    paths: tuple[str, ...]
    place: Place


def left_in_evaluation(sp: BuiltModule, calls: Sequence[Callable[[], Any]]) -> LeftInEvaluation | None:
    """The parts that the first call runs in training mode and the second no longer does.

    All that the second does not, where the module itself is put into evaluation mode on the way.
    """
    modes = _Modes(sp)
    for call in calls:
        with modes.watching():
            call()
    first, second = modes.seen[0], modes.seen[1]
    is_whole = first.get("", False) and second.get("") is False
    left = (path for path, trained in first.items() if (trained or is_whole) and second.get(path) is False)
    paths = tuple(path for path in left if _depends_on_mode(part_at(sp.module, path)))
    if not paths:
        return None
    place = next((modes.switched[path] for path in paths if path in modes.switched), definition_place(sp.module))
    return LeftInEvaluation(paths, place)


@dataclass
class _Modes:
    """In which mode each part ran first in each of several calls, and where it was put into evaluation mode."""

    sp: BuiltModule
    seen: list[dict[str, bool]] = field(default_factory=list)
    switched: dict[str, Place] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """One call is made."""
        modes: dict[str, bool] = {}
        self.seen.append(modes)
        places = Places(FrameFilter(self.sp.subject.packages))
        names = {id(part): path for path, part in self.sp.module.named_modules()}
        train = nn.Module.train

        def note(part: nn.Module, _given: Any) -> None:
            modes.setdefault(names[id(part)], part.training)

        def switching(part: nn.Module, mode: bool = True) -> nn.Module:
            place = None if mode or id(part) not in names else _asking(places)
            if place is not None:
                self.switched.setdefault(names[id(part)], place)
            return train(part, mode)

        handles = [part.register_forward_pre_hook(note) for part in self.sp.module.modules()]
        try:
            with places.watching(), patch.object(nn.Module, "train", switching):
                yield
        finally:
            for handle in handles:
                handle.remove()


def _asking(places: Places) -> Place | None:
    """The line that asks for a mode, outside of the methods by which modules hand it on to their parts."""
    frame: FrameType | None = frame_above(1)
    while frame is not None and (frame.f_code.co_name == "switching" or _hands_on(frame)):
        frame = frame.f_back
    return None if frame is None else places.of_frame(frame)


def _hands_on(frame: FrameType) -> bool:
    return frame.f_code.co_name in ("train", "eval") and isinstance(frame.f_locals.get("self"), nn.Module)


def _depends_on_mode(part: nn.Module) -> bool:
    """Whether it drops something, normalises by the batch, or is of a class of the subject's that asks for its mode."""
    if isinstance(part, _DROPPING):
        return part.p > 0
    if isinstance(part, (nn.RNNBase, nn.MultiheadAttention)):
        return float(part.dropout) > 0
    if isinstance(part, _OF_BATCHES):
        return True
    code = getattr(inspect.unwrap(type(part).forward), "__code__", None)
    return not type(part).__module__.startswith("torch.") and code is not None and "training" in code.co_names
