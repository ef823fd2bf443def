"""Modules named after dropping, asked alone: what they leave of their input in training mode and in evaluation."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import NotApplicableError, attempt
from nsa_doctor.probes.behaviour.dropping_parts import called_parts, is_dropping, share_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.modes import evaluating
from nsa_doctor.probes.model.state import preserved_state, seed_everything

_CALLS, _ROWS = 64, 32
_ERRORS = 6.0  # of the mean over calls, beyond which it is another
_LEAST = 0.02  # of what is left
_LEAST_OF_ALL = 1e-3  # of all of it, by one number
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
    called = called_parts(sp, length, [part for part in sp.module.modules() if is_dropping(part) and _scales(part)])
    if not called:
        raise NotApplicableError("it calls nothing that is named after dropping, but dropouts of torch")
    for name, (module, x) in called.items():
        ones = torch.ones((_ROWS, *x.shape[1:]), dtype=x.dtype, device=x.device)
        with preserved_state(), torch.no_grad():
            found = attempt(lambda name=name, module=module, ones=ones: _dropped(name, module, ones))
        if isinstance(found, DroppedMean):
            yield found


def _scales(module: nn.Module) -> bool:
    """Whether nothing is set that says it does not."""
    return not any("scale" in each and value is False for each, value in vars(module).items())


def _dropped(name: str, module: nn.Module, ones: Tensor) -> DroppedMean | None:
    """What is left of ones in the mean of many calls, where some are set to zero and evaluation leaves another share.

    One draw may hold for all rows of a call: the error of the mean is that over calls. What is left as large as in
    evaluation, beside what is zero, needs no mean; neither does what holds a share to drop, and drops none and makes
    all of its input larger or smaller by one number, `1 / (1 + p)` say.
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
    if not zeros and share_of(module) is not None:
        is_all_alike = max(means) - min(means) < _EQUAL and float(answer.max() - answer.min()) < _EQUAL
        is_another = is_all_alike and abs(mean - due) > _LEAST_OF_ALL * abs(due)
        return DroppedMean(name, module, ones, 0, mean, due, zeros) if is_another else None
    return DroppedMean(name, module, ones, seeds[0], mean, due, zeros) if 0 < zeros < 1 and is_another else None
