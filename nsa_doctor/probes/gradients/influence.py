"""Which parameters the output depends on smoothly, so that they have to get a gradient."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from nsa_doctor.probes.model.built_module import BuiltModule, require_finite
from nsa_doctor.probes.numerics.precision import effective_precision, noise_floor

_USUAL_SCALE = 0.02
# Halving a step halves the change of a smooth function, quarters it where the derivative is zero, and leaves a jump as
# it is: two is distinguished from one and from four at their geometric means.
_LEAST_RATIO, _LARGEST_RATIO = math.sqrt(2), 2 * math.sqrt(2)


class Influence:
    """Steps parameters of one built module and watches its output on one input."""

    def __init__(self, sp: BuiltModule, x: Tensor) -> None:
        length = x.shape[1]
        with torch.enable_grad():
            precision = effective_precision(sp, x)
        self._sp, self._x = sp, x
        # A third power balances rounding (eps/h) against curvature (h) in one-sided differences and leaves both small.
        self._step = precision.eps ** (1 / 3)
        self._eps = precision.eps
        self._base = require_finite(self._output(), length)
        self._floor = noise_floor(sp, x, precision.eps)
        self._floor = torch.maximum(self._floor, _per_token(self._output() - self._base))

    def of(self, parameter: nn.Parameter) -> bool:
        """Whether a small step of this parameter changes the output in proportion, beyond the noise."""
        generator = torch.Generator().manual_seed(self._sp.subject.seed)
        direction = torch.randn(parameter.shape, generator=generator, device="cpu").to(parameter) * _scale(parameter)
        whole, half = (self._change(parameter, direction * step) for step in (self._step, self._step / 2))
        is_seen = (half > self._floor[(...,) + (None,) * (half.ndim - 2)]) & torch.isfinite(whole)
        if not bool(is_seen.any()):
            return False
        ratio = float((whole[is_seen] / half[is_seen]).median())
        return _LEAST_RATIO <= ratio <= _LARGEST_RATIO

    def of_large(self, parameter: nn.Parameter, keeps_sign: bool = False, times: float = 1.0) -> bool:
        """Whether replacing this parameter by other values so many times its size changes half of the output's digits.

        With `keeps_sign` those of the same sign are tried: a norm forgets the size of what it is given, not its sign.
        """
        generator = torch.Generator().manual_seed(self._sp.subject.seed + 1)
        noise = torch.randn(parameter.shape, generator=generator, device="cpu").to(parameter)
        due = math.sqrt(self._eps) * float(self._base.abs().max()) + float(self._floor.max())
        for sign in (1, -1):
            direction = sign * noise * _scale(parameter) * times
            if keeps_sign:
                direction = torch.where(parameter == 0, direction, parameter.detach() * torch.expm1(sign * noise))
            if bool((self._change(parameter, direction) > due).any()):
                return True
        return False

    def among(self, parameters: Iterable[tuple[str, nn.Parameter]], most: int) -> Iterator[tuple[str, nn.Parameter]]:
        """Those that matter; at most so many are tried."""
        for index, (name, parameter) in enumerate(parameters):
            if index < most and self.of(parameter):
                yield name, parameter

    def _change(self, parameter: nn.Parameter, direction: Tensor) -> Tensor:
        kept = parameter.detach().clone()
        try:
            with torch.no_grad():
                parameter.add_(direction)
            return (self._output() - self._base).abs()
        finally:
            with torch.no_grad():
                parameter.copy_(kept)

    def _output(self) -> Tensor:
        """With grad mode on: a subject may go another way without."""
        with torch.enable_grad():
            return self._sp(self._x).detach().double()


def _per_token(change: Tensor) -> Tensor:
    return change.abs().flatten(2).amax(-1)


def _scale(parameter: Tensor) -> float:
    size = float(parameter.detach().double().square().mean().sqrt())
    return size if math.isfinite(size) and size > 0 else _USUAL_SCALE
