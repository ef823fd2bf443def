"""What converting a module to half precision does to its operations, done in float64: how far rounding may take it.

Every operation's result is rounded, forward and backward, as if it were one of the narrow type, which nothing is: code
that asks for the dtype takes its other branch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.probes.internal import DispatchWatcher, tree_leaves, tree_map
from nsa_doctor.probes.numerics.rounded_pass import RoundedPass, passed
from nsa_doctor.probes.numerics.rounding_budget import Twins
from nsa_doctor.probes.tensors.widened import Widened

_OF_A_MASK = 1e29  # larger finite ones are the end of another dtype's range, as finfo(dtype).min, and stay at the end


def half_passes(pair: Twins, x: Tensor) -> tuple[RoundedPass, RoundedPass, RoundedPass]:
    """One pass in float64, one whose operations are rounded, and that of the converted module, on the same values."""
    low = x.to(pair.dtype) if x.is_floating_point() else x
    plain = passed(pair.wide, x, Widened)
    imitated = passed(pair.wide, x, lambda: _imitation(pair.dtype), lambda: _Rounding(pair.dtype))
    return plain, imitated, passed(pair.low, low)


@contextmanager
def _imitation(half: torch.dtype) -> Iterator[None]:
    with Widened(), _Rounding(half):
        yield


class _Rounding(DispatchWatcher):
    """Rounds what every operation returns, and the numbers it is given; the base class is torch's."""

    def __init__(self, half: torch.dtype) -> None:
        super().__init__()
        self._half = half

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; views show what is rounded already."""
        if getattr(func, "is_view", False):
            return func(*args, **kwargs)
        result = func(*tree_map(self._number, args), **tree_map(self._number, kwargs))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.layout == torch.strided:
                leaf.copy_(self._rounded(leaf))
        return result

    def _number(self, leaf: Any) -> Any:
        """A number as the narrow type has it; one beyond its range is left alone, for no kernel takes it."""
        if not isinstance(leaf, float) or not abs(leaf) <= torch.finfo(self._half).max:
            return leaf
        return float(torch.tensor(leaf, dtype=self._half))

    def _rounded(self, values: Tensor) -> Tensor:
        most = torch.finfo(self._half).max
        ended = torch.where((values.abs() > _OF_A_MASK) & ~values.isinf(), values.sign() * most, values)
        return ended.to(self._half).to(values.dtype)
