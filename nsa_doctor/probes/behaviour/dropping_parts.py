"""Modules named after dropping, the shares that they hold, and what a pass in training mode calls them with."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.probes.internal import DROPOUTS
from nsa_doctor.probes.model.built_module import BuiltModule

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
    called: dict[str, tuple[nn.Module, Tensor]] = {}
    names = {module: name for name, module in sp.module.named_modules()}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = (*args, *kwargs.values())
        is_plain = len(given) == 1 and isinstance(given[0], Tensor) and isinstance(output, Tensor)
        if is_plain and given[0].is_floating_point() and output.shape == given[0].shape:
            called[names[module]] = module, given[0].detach()

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in parts]
    try:
        with torch.no_grad():
            sp(sp.input(length, 2))
    finally:
        for handle in handles:
            handle.remove()
    return called
