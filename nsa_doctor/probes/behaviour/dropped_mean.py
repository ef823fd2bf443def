"""Modules named after dropping, asked alone: what they leave of their input in training mode and in evaluation."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.internal import DROPOUTS
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.modes import evaluating
from nsa_doctor.probes.model.state import preserved_state, seed_everything

_NAME = re.compile(r"drop|stochastic_?depth", re.IGNORECASE)
_OF_WHOLES = re.compile(r"token|word|patch|modal|cond|label|caption|node|edge|augment|mask", re.IGNORECASE)
_CALLS, _ROWS = 8, 256
_ERRORS = 6.0  # of the mean, beyond which it is another
_LEAST = 0.02  # of what is left


@dataclass(frozen=True)
class DroppedMean:
    """A module that leaves `mean` of its input in training, and `due` in evaluation; it sets `share` of it to zero.

    `seed` and `x` are of a call that drops some.
    """

    name: str
    module: nn.Module
    x: Tensor
    seed: int
    mean: float
    due: float
    share: float


def dropped_means(sp: BuiltModule, length: int) -> Iterator[DroppedMean]:
    """Of the modules that a pass in training mode calls with a tensor, and that answer with one of its shape.

    What drops whole tokens or conditions need not keep their mean, nor need what is set not to scale.
    """
    for name, (module, x) in _called(sp, length).items():
        ones = torch.ones((_ROWS, *x.shape[1:]), dtype=x.dtype, device=x.device)
        with preserved_state(), torch.no_grad():
            found = attempt(lambda name=name, module=module, ones=ones: _dropped(name, module, ones))
        if isinstance(found, DroppedMean):
            yield found


def _called(sp: BuiltModule, length: int) -> dict[str, tuple[nn.Module, Tensor]]:
    called: dict[str, tuple[nn.Module, Tensor]] = {}
    names = {module: name for name, module in sp.module.named_modules() if _drops(module)}

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        is_plain = len(args) == 1 and isinstance(args[0], Tensor) and isinstance(output, Tensor)
        if is_plain and args[0].is_floating_point() and output.shape == args[0].shape:
            called[names[module]] = module, args[0].detach()

    handles = [module.register_forward_hook(note) for module in names]
    try:
        with torch.no_grad():
            sp(sp.input(length, 2))
    finally:
        for handle in handles:
            handle.remove()
    return called


def _drops(module: nn.Module) -> bool:
    name = type(module).__name__
    is_set = any("scale" in each and value is False for each, value in vars(module).items())
    is_own = not isinstance(module, DROPOUTS) and not any(True for _ in module.parameters())
    return bool(_NAME.search(name)) and not _OF_WHOLES.search(name) and is_own and not is_set


def _dropped(name: str, module: nn.Module, ones: Tensor) -> DroppedMean | None:
    """What is left of ones in the mean of many rows, where some are set to zero and evaluation leaves another share."""
    with evaluating(module):
        due = float(module(ones.clone()).double().mean())
    answers: list[Tensor] = []
    for seed in range(_CALLS):
        seed_everything(seed)
        answers.append(module(ones.clone()).double().flatten(1))
    rows = torch.cat(answers).mean(1)
    mean, error = float(rows.mean()), float(rows.std()) / math.sqrt(len(rows))
    share = float((torch.cat(answers) == 0).double().mean())
    if not 0 < share < 1 or not abs(mean - due) > max(_ERRORS * error, _LEAST):
        return None
    seed = next(index for index, answer in enumerate(answers) if bool((answer == 0).any()))
    return DroppedMean(name, module, ones, seed, mean, due, share)
