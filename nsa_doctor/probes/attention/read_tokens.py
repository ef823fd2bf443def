"""Which tokens' outputs change with which token of the input, whatever the input: who reads whom."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa_doctor.probes.model.built_module import BuiltModule

_INPUTS = 2
_ROUNDINGS = 1e4
_MOST_ROWS = 16


def readers(sp: BuiltModule, length: int, tokens: Sequence[int]) -> Tensor:
    """[length, len(tokens)]: whether the output of each token changes with that token, for any of some inputs.

    One row of a batch has one token changed, the first none.
    """
    found = torch.zeros(length, len(tokens), dtype=torch.bool)
    for index in range(_INPUTS):
        seed = sp.subject.seed + index
        x, other = sp.input(length, seed=seed), sp.input(length, seed=seed + 31)
        if not x.is_floating_point():
            other = torch.where(other == x, (other + 1) % sp.subject.width, other)
        for first in range(0, len(tokens), _MOST_ROWS):
            some = tokens[first : first + _MOST_ROWS]
            rows = x.repeat(len(some) + 1, *[1] * (x.ndim - 1))
            for row, token in enumerate(some, start=1):
                rows[row, token] = other[0, token]
            with torch.no_grad():
                output = sp(rows).double().flatten(2)
            bound = _ROUNDINGS * torch.finfo(getattr(torch, sp.dtype)).eps * output.abs().max()
            changed = ~((output[1:] - output[:1]).abs().amax(-1) <= bound)
            found[:, first : first + len(some)] |= changed.T.cpu()
    return found
