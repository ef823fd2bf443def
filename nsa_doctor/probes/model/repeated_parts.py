"""Which part stands several times in a list or a row of parts: one and the same module or parameter."""

from collections import Counter
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy

from nsa_doctor.probes.internal import NORMS_BY_BATCH

Part = nn.Module | nn.Parameter


@dataclass(frozen=True)
class RepeatedPart:
    """A part that stands several times in a container; `is_plain` where this alone says that it should not."""

    part: Part
    times: int
    is_plain: bool


def repeated_part(container: nn.Module) -> RepeatedPart | None:
    """The part with weights that stands several times in a list or a row; None where there is none."""
    if not isinstance(container, (nn.ModuleList, nn.Sequential, nn.ParameterList)):
        return None
    parts: list[Part] = [each for each in container if isinstance(each, Part)]  # a list may hold None
    counts = Counter(map(id, parts))
    found = [_repeated(part, counts[id(part)], len(container)) for part in parts if counts[id(part)] > 1]
    return max((each for each in found if each is not None), key=lambda each: each.is_plain, default=None)


def _repeated(part: Part, times: int, size: int) -> RepeatedPart | None:
    weights = [part] if isinstance(part, nn.Parameter) else list(part.parameters())
    if not any(is_lazy(each) or each.numel() > 1 for each in weights):
        return None
    is_norm = isinstance(part, NORMS_BY_BATCH) and part.running_mean is not None
    is_layer = isinstance(part, nn.Module) and any(each.ndim > 1 for each in weights)  # no activation
    return RepeatedPart(part, times, is_norm or (times == size and is_layer))
