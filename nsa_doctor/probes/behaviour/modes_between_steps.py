"""Parts that run in training mode in one call and in evaluation mode in the next, and the line that switches them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Any
from unittest.mock import patch

from torch import nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule

_CALLS = 4  # a step may take turns
_DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_OF_BATCHES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class LeftInEvaluation:
    """The parts by path whose results depend on the mode, and the line that put them into evaluation mode."""

    paths: tuple[str, ...]
    place: Place


def left_in_evaluation(sp: BuiltModule, call: Callable[[], Any]) -> LeftInEvaluation | None:
    """The parts that the first of several calls runs in training mode, and that run in none of the later ones so.

    All that run, where the module itself does. Norms and frozen parts that a line of their own puts into evaluation
    mode are meant to be.
    """
    modes = _Modes(sp)
    for _ in range(_CALLS):
        with modes.watching():
            call()
    first = modes.seen[0]
    later = {path: any(True in seen.get(path, ()) for seen in modes.seen[1:]) for path in first}
    is_whole = True in first.get("", ()) and not later[""]
    left = (path for path, seen in first.items() if (True in seen or is_whole) and not later[path])
    run_again = (path for path in left if any(path in seen for seen in modes.seen[1:]))
    paths = tuple(
        path for path in run_again if _depends_on_mode(part_at(sp.module, path)) and not modes.is_meant(path, is_whole)
    )
    if not paths:
        return None
    place = next((modes.switched[path] for path in paths if path in modes.switched), definition_place(sp.module))
    return LeftInEvaluation(paths, place)


@dataclass
class _Modes:
    """In which modes each part ran in each of several calls, and where it was put into evaluation mode."""

    sp: BuiltModule
    seen: list[dict[str, set[bool]]] = field(default_factory=list)
    switched: dict[str, Place] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """One call is made."""
        modes: dict[str, set[bool]] = {}
        self.seen.append(modes)
        places = Places(FrameFilter(self.sp.subject.packages))
        names = {id(part): path for path, part in self.sp.module.named_modules()}
        train = nn.Module.train

        def note(part: nn.Module, _given: Any) -> None:
            if id(part) in names:  # no copy of it
                modes.setdefault(names[id(part)], set()).add(part.training)

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

    def is_meant(self, path: str, is_whole: bool) -> bool:
        """Whether it is a norm whose own line switches it, or stands in a frozen part that a line switches."""
        if is_whole:
            return False
        outer = [path, *(path[:at] for at, letter in enumerate(path) if letter == ".")]
        switching = [each for each in outer if each in self.switched]
        parts = [part_at(self.sp.module, each) for each in switching]
        is_norm = bool(parts) and all(isinstance(part, _OF_BATCHES) for part in parts)
        held = [list(part.parameters()) for part in parts]
        return is_norm or any(each and not any(p.requires_grad for p in each) for each in held)


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
    own = [kind for kind in type(part).__mro__ if not kind.__module__.startswith("torch.") and kind is not object]
    methods = (value for kind in own for value in list(vars(kind).values()) if isinstance(value, FunctionType))
    return any("training" in method.__code__.co_names for method in methods)
