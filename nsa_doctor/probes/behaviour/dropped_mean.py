"""Modules named after dropping, asked alone: what they leave of their input in training mode and in evaluation."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import NotApplicableError, attempt
from nsa_doctor.probes.internal import DROPOUTS
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.modes import evaluating
from nsa_doctor.probes.model.state import preserved_state, seed_everything

_NAME = re.compile(r"drop|stochastic_?depth", re.IGNORECASE)
_OF_WHOLES = re.compile(  # which are left out as they are, and not to keep a mean
    r"token|word|patch|modal|cond|label|caption|node|edge|augment|mask|frame|context|text|class|prompt|sensor|speaker"
    r"|step|span|view|time|guidance",
    re.IGNORECASE,
)
_CALLS, _ROWS = 64, 32
_ERRORS = 6.0  # of the mean over calls, beyond which it is another
_LEAST = 0.02  # of what is left
_EQUAL = 1e-6


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
    """Of the modules that a pass in training mode calls with a tensor alone, and that answer with one of its shape.

    What drops whole tokens or conditions need not keep their mean, nor need what is set not to scale. Raises
    NotApplicableError where there is none.
    """
    called = _called(sp, length)
    if not called:
        raise NotApplicableError("it calls nothing that is named after dropping, but dropouts of torch")
    for name, (module, x) in called.items():
        ones = torch.ones((_ROWS, *x.shape[1:]), dtype=x.dtype, device=x.device)
        with preserved_state(), torch.no_grad():
            found = attempt(lambda name=name, module=module, ones=ones: _dropped(name, module, ones))
        if isinstance(found, DroppedMean):
            yield found


def _called(sp: BuiltModule, length: int) -> dict[str, tuple[nn.Module, Tensor]]:
    called: dict[str, tuple[nn.Module, Tensor]] = {}
    names = {module: name for name, module in sp.module.named_modules() if _drops(module)}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = (*args, *kwargs.values())
        is_plain = len(given) == 1 and isinstance(given[0], Tensor) and isinstance(output, Tensor)
        if is_plain and given[0].is_floating_point() and output.shape == given[0].shape:
            called[names[module]] = module, given[0].detach()

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in names]
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
    """What is left of ones in the mean of many calls, where some are set to zero and evaluation leaves another share.

    One draw may hold for all rows of a call: the error of the mean is that over calls. What is left as large as in
    evaluation, beside what is zero, needs no mean.
    """
    with evaluating(module):
        due = float(module(ones.clone()).double().mean())
    means, zeros, seeds, is_unscaled = list[float](), 0.0, list[int](), True
    for seed in range(_CALLS):
        seed_everything(seed)
        answer = module(ones.clone()).double()
        means.append(float(answer.mean()))
        dropped = float((answer == 0).double().mean())
        zeros += dropped / _CALLS
        seeds += [seed] if dropped else []
        is_unscaled &= bool(((answer == 0) | ((answer - due).abs() < _EQUAL)).all())
    mean, error = fmean(means), stdev(means) / math.sqrt(_CALLS)
    is_another = is_unscaled or abs(mean - due) > max(_ERRORS * error, _LEAST)
    return DroppedMean(name, module, ones, seeds[0], mean, due, zeros) if 0 < zeros < 1 and is_another else None
