"""Modules that keep channels for every pair of tokens, whose method may cost the cube of the length."""

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule

_LENGTH = 23  # that no width of a layer is likely to be
_NORMS = (nn.LayerNorm, nn.RMSNorm)


def keeps_pairs(sp: BuiltModule) -> bool:
    """Whether a linear layer and a norm are given channels [..., S, S, C] of every pair of tokens.

    As the trunks of structure models do, which attend in the triangles of three tokens (AlphaFold 2, supplement 1.6);
    attention scores go through a linear layer at most.
    """
    if sp.subject.max_length < _LENGTH:
        return False
    seen: set[type[nn.Module]] = set()

    def see(part: nn.Module, given: tuple[object, ...]) -> None:
        x = given[0] if given else None
        if isinstance(x, Tensor) and x.dim() > 3 and x.shape[-3:-1] == (_LENGTH, _LENGTH) and x.shape[-1] > 1:
            seen.add(nn.Linear if isinstance(part, nn.Linear) else nn.LayerNorm)

    parts = [each for each in sp.module.modules() if isinstance(each, (nn.Linear, *_NORMS))]
    handles = [part.register_forward_pre_hook(see) for part in parts]
    try:
        with unobserved(), torch.no_grad():
            attempt(lambda: sp(sp.input(_LENGTH)))
    finally:
        for handle in handles:
            handle.remove()
    return seen == {nn.Linear, nn.LayerNorm}
