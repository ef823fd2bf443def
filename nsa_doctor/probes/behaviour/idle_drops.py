"""Modules named after dropping that hold a share and, asked alone and often, give their input back as it is."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.behaviour.dropping_parts import called_parts, is_dropping, share_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import preserved_state, seed_everything

_ROWS, _MOST_CALLS, _FEW_CALLS = 32, 600, 8
_UNLIKELY = 14.0  # e to the minus: that a draw for all of a call drops in none of them
_LATER = re.compile(r"step|iter|epoch|update|progress|global|warm|anneal|schedul|curr|start|ramp|count", re.IGNORECASE)
_BY_SIZE = re.compile(r"block|back|grad", re.IGNORECASE)  # of maps that are larger than they, or on the way back


@dataclass(frozen=True)
class IdleDrop:
    """A module by its path, the attribute with its share, and in how many calls it dropped nothing."""

    path: str
    module: nn.Module
    attribute: str
    share: float
    num_calls: int


def idle_drops(sp: BuiltModule, length: int) -> Iterator[IdleDrop]:
    """Of those that a pass in training mode calls; without those that are switched off, or that begin later."""
    parts = [part for part in sp.module.modules() if part.training and is_dropping(part) and _is_on(part)]
    for path, (module, x) in called_parts(sp, length, parts).items():
        held = share_of(module)
        num_calls = math.ceil(_UNLIKELY / -math.log1p(-held[1])) if held else _MOST_CALLS + 1
        if held is None or num_calls > _MOST_CALLS:
            continue
        ones = torch.ones((_ROWS, *x.shape[1:]), dtype=x.dtype, device=x.device)
        with preserved_state(), torch.no_grad():
            idle = [
                attempt(lambda module=module, given=given, number=number: _is_idle(module, given, number))
                for given, number in ((ones, num_calls), (x, _FEW_CALLS))  # it may heed values
            ]
        if idle == [True, True]:
            yield IdleDrop(path, module, *held, num_calls)


def _is_on(module: nn.Module) -> bool:
    """Whether nothing says that it is off, waits for later calls, or serves large maps alone."""
    if _BY_SIZE.search(type(module).__name__) or any(True for _ in module.buffers()):
        return False
    held = {name: value for name, value in vars(module).items() if name not in ("training", "inplace")}
    is_off = any(value is False and not name.startswith("_") and "scale" not in name for name, value in held.items())
    return not is_off and not any(_LATER.search(name) for name in held)


def _is_idle(module: nn.Module, ones: Tensor, num_calls: int) -> bool:
    for seed in range(num_calls):
        seed_everything(seed)
        if not torch.equal(module(ones.clone()), ones):
            return False
    return True
