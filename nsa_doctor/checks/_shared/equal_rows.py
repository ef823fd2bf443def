"""Parameters whose rows are copies of one, and whether their gradients keep them so."""

import re

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import trainable
from nsa_doctor.probes.model.built_module import BuiltModule

_ROUNDINGS = 1e4
_TABLES = (nn.Embedding, nn.EmbeddingBag)  # ids that are as frequent may well get one gradient
_GAINS = re.compile(r"gain|scale|gamma|beta|norm|temperature", re.IGNORECASE)


def equal_rows(sp: BuiltModule, length: int) -> dict[str, nn.Parameter]:
    """Parameters of several rows that are one and the same, but for gains, and for tables that a pass calls."""
    called: list[nn.Module] = []
    tables = [part for part in sp.module.modules() if isinstance(part, _TABLES)]
    handles = [part.register_forward_pre_hook(lambda part, _given: called.append(part)) for part in tables]
    with torch.no_grad():
        sp(sp.input(length))
    for handle in handles:
        handle.remove()
    asked = {id(each) for part in called for each in part.parameters()}
    named = [(name, each) for name, each in trainable(sp.module) if id(each) not in asked and each.squeeze().ndim > 1]
    named = [(name, each) for name, each in named if not _GAINS.search(name.rpartition(".")[2])]
    return {name: each for name, each in named if bool((rows_of(each) == rows_of(each)[:1]).all())}


def rows_of(tensor: Tensor) -> Tensor:
    """[N, D]: axes of one element left out, and all behind the first taken together."""
    return tensor.detach().squeeze().flatten(1)


def have_one_gradient(parameter: nn.Parameter) -> bool:
    """Whether every row has the gradient of the first but for rounding, and it is not zero."""
    if parameter.grad is None:
        return False
    rows = rows_of(parameter.grad.to_dense())
    size = float(rows.abs().max())
    return size > 0 and float((rows - rows[:1]).abs().max()) <= _ROUNDINGS * torch.finfo(rows.dtype).eps * size
