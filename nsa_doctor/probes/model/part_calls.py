"""What parts of a module are called with, first, in one pass."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.model.built_module import BuiltModule


@dataclass(frozen=True)
class PartCall:
    """A call that is given a tensor `x` first and answers with a tensor; `args` and `kwargs` are the rest."""

    x: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def part_calls(
    sp: BuiltModule, parts: Iterable[nn.Module], length: int, *, is_shape_kept: bool = True
) -> dict[nn.Module, PartCall]:
    """The first such call of each of these parts, of one shape with its answer unless not `is_shape_kept`.

    Parts that have none are left out.
    """
    called: dict[nn.Module, PartCall] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x = args[0] if args else None
        if module in called or not isinstance(x, Tensor) or not isinstance(output, Tensor):
            return

        def keep() -> None:
            if x.is_floating_point() and (x.shape == output.shape or not is_shape_kept):
                called[module] = PartCall(copied(x), copied(args[1:]), copied(kwargs))

        attempt(keep)  # a tensor of a kind of its own may refuse to be copied, and the pass is not to fail by that

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in parts]
    try:
        with torch.no_grad():
            sp(sp.input(length, 2))
    finally:
        for handle in handles:
            handle.remove()
    return called


def copied(value: Any) -> Any:
    """The value with copies of its tensors, also of those in plain tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(copied(each) for each in value)
    return {name: copied(each) for name, each in value.items()} if type(value) is dict else value
