"""Compares two outputs that should be equal, token by token, above what rounding alone does."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.probes.model.built_module import BuiltModule, require_finite
from nsa_doctor.probes.numerics.operation_noise import operation_noise
from nsa_doctor.probes.numerics.precision import effective_precision, finest_precision, least_noise, noise_floor
from nsa_doctor.probes.tensors.finite import isfinite


@dataclass(frozen=True)
class Departure:
    """How many tokens differ, the first of them, and the one that differs most beyond its floor.

    `shapes` says what differs instead, where the output is not of the shape to be compared: then all tokens do.
    """

    num_tokens: int
    num_compared: int
    first_row: int
    first_token: int
    error: float
    floor: float
    shapes: str = ""

    @property
    def text(self) -> str:
        """`12 of 60 tokens differ, first token 3, by up to 0.2 (tolerance 1e-13)`."""
        if self.shapes:
            return self.shapes
        if self.num_compared == 1:
            which = f"token {self.first_token} differs"
        elif self.num_tokens == 1:
            which = f"1 of {self.num_compared} tokens differs, token {self.first_token}"
        else:
            which = f"{self.num_tokens} of {self.num_compared} tokens differ, first token {self.first_token}"
        size = "not a number" if self.error != self.error else f"up to {self.error:.2g}"
        return f"{which}, by {size} (tolerance {self.floor:.1g})"


def with_other_future(built: BuiltModule, x: Tensor, cut: int, scale: float) -> Tensor:
    """The input with other tokens from `cut` on, `scale` times as large where they are embeddings, or all zeros."""
    other = built.input(x.shape[1], seed=built.subject.seed + 1)[:, cut:]
    scaled = other * scale if x.is_floating_point() else other
    return torch.cat((x[:, :cut], scaled if scale else torch.zeros_like(other)), dim=1)


@dataclass
class Baseline:
    """A finite output [B, S, ...] for an input x, which other outputs are held against."""

    built: BuiltModule
    x: Tensor
    output: Tensor
    _floors: dict[float, Tensor] = field(default_factory=dict, repr=False)
    _noises: dict[float, Tensor] = field(default_factory=dict, repr=False)

    def departure(
        self,
        output: Tensor,
        rows: slice = slice(None),
        tokens: slice = slice(None),
        *,
        loudness: float = 1.0,
        expected: Tensor | None = None,
        given: Tensor | None = None,
        through: BuiltModule | None = None,
    ) -> Departure | None:
        """How `output` departs from these rows and tokens of the baseline; None when it does not.

        `loudness` says how many times as large the input was elsewhere: rounding is as many times as large. `expected`
        takes the baseline's place where another way of computing these tokens is compared. `given` is the input of the
        other pass, and `through` what it went through if that is another: what the baseline alone rounds is no rounding
        of both.
        """
        expected = self.output[rows, tokens] if expected is None else expected
        if departure(output, expected, loudness * self._least_floor[rows, tokens]) is None:
            return None
        eps = self._eps if given is None else self._finer_of(through or self.built, given)
        floor = loudness * self._floor_at(eps)[rows, tokens]
        found = departure(output, expected, floor)
        if found is None or not found.error <= _MOST_FLOORS * found.floor:
            return found
        return departure(output, expected, torch.maximum(floor, loudness * self._operation_noise(eps)[rows, tokens]))

    @cached_property
    def _least_floor(self) -> Tensor:
        """What the floor is above in any case, known without a pass: what lies within it needs no dearer judge."""
        eps = torch.finfo(self.output.dtype).eps
        return least_noise(self.output, eps) + self._across(eps)

    def _across(self, eps: float) -> float:
        """A transform over all tokens, as long convolutions do it, rounds each by what the largest one loses."""
        roundings = _ROUNDINGS if eps > torch.finfo(torch.float32).eps else _ROUNDINGS_OF_A_TRANSFORM
        return roundings * eps * float(self.output.abs().max())

    @property
    def floor(self) -> Tensor:
        """How far rounding moves each token [B, S]; costs several passes, so only what differs at all asks for it."""
        return self._floor_at(self._eps)

    @cached_property
    def _eps(self) -> float:
        return finest_precision(self.built, self.x[:, :_LENGTH_FOR_PRECISION]).eps

    def _finer_of(self, through: BuiltModule, given: Tensor) -> float:
        if self._eps <= torch.finfo(self.output.dtype).eps:
            return self._eps
        with torch.no_grad():
            return min(self._eps, effective_precision(through, given).eps)

    def _floor_at(self, eps: float) -> Tensor:
        if eps not in self._floors:
            self._floors[eps] = noise_floor(self.built, self.x, eps) + self._across(eps)
            if not bool(isfinite(self._floors[eps]).all()):
                raise NotComparableError(f"rounding alone makes the output not finite at S={self.x.shape[1]}")
        return self._floors[eps]

    def _operation_noise(self, eps: float) -> Tensor:
        """What intermediates that are larger than the output lose [B, S]; only what looks like a fault asks for it."""
        if eps not in self._noises:
            self._noises[eps] = operation_noise(self.built, self.x, eps)
        return self._noises[eps]


def baseline(built: BuiltModule, x: Tensor) -> Baseline:
    """Run the subject on x; NotComparableError when its output is not finite to begin with."""
    with torch.no_grad():
        return Baseline(built, x, require_finite(built(x), x.shape[1]))


def departure(result: Tensor, expected: Tensor, floor: Tensor) -> Departure | None:
    """Where the result [B, S, ...] is farther from what is expected than the floor [B, S]; NaN is, or another shape."""
    if result.shape != expected.shape:
        num_tokens = expected.shape[0] * expected.shape[1]
        shapes = f"its shape is {list(result.shape)}, not {list(expected.shape)}"
        return Departure(num_tokens, num_tokens, 0, 0, error=torch.inf, floor=0.0, shapes=shapes)
    error = (result.double() - expected.double()).abs().flatten(2).amax(-1)
    bad = ~(error <= floor)
    if not bool(bad.any()):
        return None
    row, token = (int(index) for index in bad.nonzero()[0])
    excess = torch.where(bad, (error / floor.clamp_min(_TINY)).nan_to_num(nan=torch.inf), -1.0)
    worst = int(excess.argmax())
    return Departure(
        num_tokens=int(bad.sum()),
        num_compared=bad.numel(),
        first_row=row,
        first_token=token,
        error=float(error.flatten()[worst]),
        floor=float(floor.flatten()[worst]),
    )


_TINY = 1e-300
_ROUNDINGS = 16.0
_ROUNDINGS_OF_A_TRANSFORM = 1024.0  # none is made in half precision; what it adds up is larger than its result
_LENGTH_FOR_PRECISION = 32
_MOST_FLOORS = 1e6  # what differs by more is not the rounding of any intermediate
