"""Recurrent weights that are never asked for: layers that take one step, from no state."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_OF_THE_STATE = "weight_hh"


def of_first_steps(sp: BuiltModule, names: Sequence[str], length: int) -> list[str]:
    """Those of the names that are torch's own weights of a state, in layers that go one step from a state of zeros.

    As what reads labels does where none are written yet: with the next label they act. It is no such step where each
    token is taken for a row.
    """
    owners = {name: part_at(sp.module, name.rpartition(".")[0]) for name in names if _OF_THE_STATE in name}
    recurrent = {id(each): each for each in owners.values() if isinstance(each, _RECURRENT)}
    if not recurrent:
        return []
    going_on: set[int] = set()

    def see(layer: nn.Module, given: tuple[Any, ...]) -> None:
        if not _is_first(layer, *given):
            going_on.add(id(layer))

    handles = [layer.register_forward_pre_hook(see) for layer in recurrent.values()]
    try:
        with unobserved(), torch.no_grad():
            attempt(lambda: sp(sp.input(length)))
    finally:
        for handle in handles:
            handle.remove()
    return [name for name, owner in owners.items() if id(owner) in recurrent and id(owner) not in going_on]


def _is_first(layer: nn.Module, x: Any, state: Any = None) -> bool:
    """Whether it takes one step of the batch's one row, from no state or one of zeros."""
    states = [state] if isinstance(state, Tensor) else list(state or ())
    if not isinstance(x, Tensor) or any(bool(each.any()) for each in states):
        return False
    return x.shape[:-1].numel() == 1
