"""What the checks of parameters share: the passes they make, and how parameters with one cause are told together."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor, nn

from nsa_doctor.check import Profile
from nsa_doctor.frames import FrameFilter
from nsa_doctor.measurement import Place
from nsa_doctor.probes.cuts import PathWatch
from nsa_doctor.probes.specimen import Specimen
from nsa_doctor.probes.training import Pass, forward_backward
from nsa_doctor.subject import Subject

_Cause = TypeVar("_Cause", bound=Hashable)
MOST_FINDINGS = 3
MOST_TRIED = 24  # parameters stepped one by one
_LENGTHS: dict[Profile, tuple[int, ...]] = {"smoke": (67,), "quick": (67, 131), "full": (3, 67, 131, 260, 521)}


def lengths_for(subject: Subject) -> list[int]:
    """Lengths to train at."""
    return sorted({min(length, subject.max_length) for length in _LENGTHS[subject.profile]})


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters that ask for a gradient."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad and p.numel()]


def watched_pass(sp: Specimen, x: Tensor, followed: Sequence[Tensor]) -> tuple[Pass, PathWatch]:
    """A forward and backward pass, with the way these tensors take."""
    watch = PathWatch(FrameFilter(sp.subject.packages), followed)
    return forward_backward(sp, x, watch), watch


def placed(place: Place, names: Sequence[str], module: nn.Module) -> Place:
    """The place, with the module that holds these parameters where none is known."""
    if place.module_class:
        return place
    owners = [name.rpartition(".")[0] for name in names]
    path = owners[0]
    while not all(f"{owner}.".startswith(f"{path}.") for owner in owners) and path:
        path = path.rpartition(".")[0]
    holder = type(module.get_submodule(path)).__name__
    return Place(module=path, module_class=holder, file=place.file, line=place.line, function=place.function)


def grouped(causes: Mapping[str, _Cause]) -> list[tuple[_Cause, list[str]]]:
    """Names by cause, the cause of most first."""
    groups: dict[_Cause, list[str]] = {}
    for name, cause in causes.items():
        groups.setdefault(cause, []).append(name)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def listed(names: Sequence[str]) -> str:
    """2 parameters (q.weight, k.weight)."""
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names)} parameter{'' if len(names) == 1 else 's'} ({shown})"
