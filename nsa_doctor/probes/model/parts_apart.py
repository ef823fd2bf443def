"""Whether one part that stands several times is given another input each time, which it did not make itself."""

from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.internal import tree_leaves, tree_map
from nsa_doctor.probes.model.built_module import BuiltModule

_LENGTH, _ROWS = 9, 2


def is_given_apart(sp: BuiltModule, part: nn.Module, times: int) -> bool:
    """Whether a pass calls it for so many inputs or more, none of which changes with what it gave before.

    So it is with a head over several levels and a tower of two views, and not with layers, each of which reads the one
    before, nor with heads that all read the same.
    """
    x = sp.input(min(_LENGTH, sp.subject.max_length), _ROWS)
    with unobserved(), torch.no_grad():
        plain = attempt(lambda: _given(sp, part, x, 0.0))
        changed = attempt(lambda: _given(sp, part, x, 1.0))
    if isinstance(plain, Caught) or isinstance(changed, Caught) or len(plain) != len(changed):
        return False
    apart = [each for at, each in enumerate(plain) if not any(_alike(each, before) for before in plain[:at])]
    return len(apart) >= times and all(map(_alike, plain, changed))


def _given(sp: BuiltModule, part: nn.Module, x: Tensor, shift: float) -> list[Tensor]:
    """The first tensor of every call of the part, what it gives being moved by up to as much."""
    given: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Any:
        given.append(next(each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)).clone())
        return tree_map(lambda each: each + shift * torch.rand_like(each) if _is_floating(each) else each, answer)

    handle = part.register_forward_hook(keep, with_kwargs=True)
    try:
        sp(x.clone())
    finally:
        handle.remove()
    return given


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one, other))
