"""Whether the gradient of the first tokens' output depends on how many tokens follow them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.check import Profile
from nsa_doctor.core.lengths import boundary_lengths, evenly, short_ones_first
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.nominal_time import WorkByLength
from nsa_doctor.probes.numerics.long_sequence import longest_affordable
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.probes.tensors.finite import isfinite

_FIRST = 5
_SHORT = (1, 2, 3)  # all of their tokens are compared
_OUTPUT = "the output"
_ROWS = 2
_REFERENCE = 37  # at which the gradient itself is compared with central differences
_WHOLE = (130, 37)  # so are these: at more tokens than so many, the gradient of all of them is compared
_ROUNDINGS = 1e3
_LONG, _BEYOND = (1031, 2048), 2093
_OF_WHOLE_TILES = (192, 256)  # of every usual size: what needs no tail may take a way of its own
_NUM_BOUNDARIES: dict[Profile, int] = {"smoke": 4, "quick": 10, "full": 1 << 16}
_NOMINAL_SECONDS: dict[Profile, float] = {"smoke": 0.05, "quick": 2.1, "full": 9.0}  # for each kind of lengths
_EACH, _FARTHEST = 256, 421  # those up to the first are tried before any beyond
_CALLS = 6  # without gradients, for a pass forward and backward at the longest length, twice


@dataclass(frozen=True)
class LengthDeparture:
    """The gradient (or the output) of the first `first` tokens that is another at a length than at the reference."""

    name: str
    first: int
    length: int
    reference: int
    error: float
    bound: float


class GradientsByLength:
    """One module and one input, cut at many lengths; gradients are of the first few tokens, along one cotangent."""

    def __init__(self, sp: BuiltModule) -> None:
        self._sp, self._limit = sp, sp.subject.max_length
        self._long = [length for length in _LONG if length <= self._limit]
        if self._long[-1:] == [max(_LONG)] and sp.subject.longest >= _BEYOND:
            self._long[-1] = _BEYOND
        self._longest = longest_affordable(sp, _CALLS)
        longest = max([min(self._limit, max(_LONG)), *self._long, *(self._longest or ())])
        self.x = sp.input(longest, _ROWS)
        self._generator_seed = sp.subject.seed + 1
        self._eps = finest_precision(sp, sp.input(min(_REFERENCE, self._limit))).eps
        self.reference = min(_REFERENCE, self._limit)
        self._work: WorkByLength | None = None
        self._known: dict[tuple[int, int, int], dict[str, Tensor]] = {}

    def lengths(self) -> Iterator[tuple[int, int]]:
        """(length, rows) to try: where blocks break, whole tiles, long ones, others; as many of each as fit a while."""
        profile, limit = self._sp.subject.profile, self._limit
        chance = random.Random(self._sp.subject.seed)  # noqa: S311 (an order, no secret)
        edges = boundary_lengths(self._sp.subject.geometry, min(limit, _FARTHEST) - 1)
        edges = evenly([edge for edge in edges if edge > _FIRST], _NUM_BOUNDARIES[profile])
        others = short_ones_first(range(_FIRST, min(limit, _EACH) + 1), self._sp.subject.seed)
        others += short_ones_first(range(_EACH + 1, min(limit, _FARTHEST) + 1), self._sp.subject.seed)
        tried = {self.reference}
        yield from ((length, _ROWS) for length in _SHORT if length < self.reference)
        whole = [length for length in _OF_WHOLE_TILES if length <= limit]
        for among in (chance.sample(edges, len(edges)), whole, self._long, others):
            left = _NOMINAL_SECONDS[profile]
            for length in among:
                if length in tried or length < _FIRST:
                    continue
                if self._work is None:
                    self._work = WorkByLength(lambda length: self._gradients(length, _ROWS), limit)
                needed = self._work.seconds(length)
                if needed > left:
                    continue
                left -= needed
                tried.add(length)
                yield length, _ROWS
        if self._longest is not None and self._longest[0] not in tried:
            yield self._longest[0], 1

    def departure(self, length: int, rows: int) -> LengthDeparture | None:
        """How the gradients of the first tokens differ at that length; what is not finite is for the NAN checks."""
        whole = next((tokens for tokens in _WHOLE if tokens < length), None)
        found = None if whole is None else self._against(length, rows, whole, whole)
        if whole is None or (found is not None and found.name == _OUTPUT):  # another output is no fault of the gradient
            return self._against(length, rows, self.reference, min(length, _FIRST))
        return found

    def _against(self, length: int, rows: int, reference: int, first: int) -> LengthDeparture | None:
        """The first gradient that differs from that at the reference length."""
        key = rows, reference, first
        if key not in self._known:
            self._known[key] = self._gradients(reference, rows, first)
        expected, found = self._known[key], self._gradients(length, rows, first)
        finite = all(bool(isfinite(each).all()) for each in (*expected.values(), *found.values()))
        if not finite:
            return None
        parameters = [each for name, each in expected.items() if name != _OUTPUT]
        size = max((float(each.abs().max()) for each in parameters if each.numel()), default=0.0)
        for name, value in expected.items():
            if not value.numel():
                continue
            scale = float(value.abs().max()) if name == _OUTPUT else size
            bound = _ROUNDINGS * self._eps * scale
            error = float((found[name] - value).abs().max()) if name in found else float(value.abs().max())
            if not error <= bound:
                return LengthDeparture(name, first, length, reference, error, bound)
        return None

    def _gradients(self, length: int, rows: int, first: int = _FIRST) -> dict[str, Tensor]:
        """Of the parameters, in float64, and the output of the first tokens, as `the output`."""
        sp = self._sp
        sp.module.zero_grad(set_to_none=True)
        with torch.enable_grad():
            output = sp(self.x[:rows, :length])
            head = output[:, :first]
            generator = torch.Generator().manual_seed(self._generator_seed)
            cotangent = torch.randn(head.shape, generator=generator, device="cpu").to(head)
            if output.requires_grad:
                ask("backward", (head * cotangent).sum().backward, sp.module, output)
        named = ((name, each.grad) for name, each in sp.module.named_parameters())
        found = {name: _real(grad) for name, grad in named if grad is not None}
        sp.module.zero_grad(set_to_none=True)
        return {_OUTPUT: head.detach().double(), **found}


def _real(gradient: Tensor) -> Tensor:
    dense = gradient.detach().to_dense()
    return torch.view_as_real(dense).double() if dense.is_complex() else dense.double()
