"""A call as it is about to be made, to make the very same again: module, arguments, random states, grad mode."""

import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.copies import copied_module
from nsa_doctor.probes.model.state import restore_generators, saved_generators


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Copies of what a call of `seam` was about to be given; what lies outside the module is not part of it."""

    seam: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    generators: dict[str, Any]
    has_grad: bool

    @classmethod
    def of(cls, module: nn.Module, seam: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Self | None:
        """None where something cannot be copied."""
        copied = attempt(lambda: (copied_module(module), _copied(args), _copied(kwargs)))
        if isinstance(copied, Caught):
            return None
        return cls(
            seam=seam,
            module=copied[0],
            args=copied[1],
            kwargs=copied[2],
            generators=saved_generators(),
            has_grad=torch.is_grad_enabled(),
        )

    def again(self) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        """Module and arguments as they were, copies each time, under the same random states."""
        module, args, kwargs = copy.deepcopy(self.module), _copied(self.args), _copied(self.kwargs)
        restore_generators(self.generators)
        return module, args, kwargs

    def given(self) -> tuple[Any, ...]:
        """The positional arguments alone, copied."""
        return _copied(self.args)


def _copied(value: Any) -> Any:
    """A deep copy in which tensors have no history but want gradients as before."""
    match value:
        case Tensor():
            return value.detach().clone().requires_grad_(value.requires_grad)
        case tuple() if type(value) is tuple:
            return tuple(_copied(each) for each in value)
        case list():
            return [_copied(each) for each in value]
        case dict():
            return {key: _copied(each) for key, each in value.items()}
        case _:
            return copy.deepcopy(value)
