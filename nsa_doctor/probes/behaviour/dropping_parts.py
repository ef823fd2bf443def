"""Modules named after dropping, the shares that they hold, and what a pass in training mode calls them with."""

import re
from collections.abc import Sequence

from torch import Tensor, nn

from nsa_doctor.probes.internal import DROPOUTS
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.part_calls import part_calls

_NAME = re.compile(r"drop|stochastic_?depth", re.IGNORECASE)
_OF_WHOLES = re.compile(  # which are left out as they are, and not to keep a mean
    r"token|word|patch|modal|cond|label|caption|node|edge|augment|mask|frame|context|text|class|prompt|sensor|speaker"
    r"|step|span|view|time|guidance",
    re.IGNORECASE,
)
_SHARE = re.compile(r"_?(?:drop[a-z]*_)*(?:drop|dropout|p|prob|probability|rate|ratio)")


def is_dropping(module: nn.Module) -> bool:
    """Whether it is named after dropping values or rows, has no parameters, and is no dropout of torch's."""
    name = type(module).__name__
    is_own = not isinstance(module, DROPOUTS) and not any(True for _ in module.parameters())
    return bool(_NAME.search(name)) and not _OF_WHOLES.search(name) and is_own


def share_of(module: nn.Module) -> tuple[str, float] | None:
    """The attribute in which it holds what share it drops, if that is above zero, and below one; None otherwise."""
    for name, value in vars(module).items():
        if _SHARE.fullmatch(name) and isinstance(value, float) and 0 < value < 1:
            return name, value
    return None


def called_parts(sp: BuiltModule, length: int, parts: Sequence[nn.Module]) -> dict[str, tuple[nn.Module, Tensor]]:
    """Those that a pass calls with a tensor alone and that answer with one of its shape, by path; and that tensor."""
    names = {module: name for name, module in sp.module.named_modules()}
    calls = part_calls(sp, parts, length).items()
    return {names[module]: (module, call.x) for module, call in calls if not call.args and not call.kwargs}
