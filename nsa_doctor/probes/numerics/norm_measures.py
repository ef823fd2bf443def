"""What a norm measures of its input: all of a token's values, some of them alone, or the lengths of vectors."""

from collections.abc import Callable

import torch
from torch import Tensor

_TIMES = 64.0
_MOST_ASKED = 64  # of the last axis
_SAME, _ONE = 1e-4, 0.05
_FEWEST_AXES = 4  # rows, tokens, channels, and the values of each channel's vector

Norm = Callable[[Tensor], Tensor]


def measures_something_else(norm: Norm, x: Tensor) -> bool:
    """Whether it divides by what is no mean over the values that it divides, by its own choice of these.

    That is where some values of the last axis have no part in it, as in an inner product that leaves them out, or
    where it has a mean over channels of the squared lengths of vectors, which stand in the last axis.
    """
    plain = norm(x) / x
    return _leaves_out_some(norm, x, plain) or _is_of_lengths(norm, x, plain)


def _leaves_out_some(norm: Norm, x: Tensor, plain: Tensor) -> bool:
    size = x.shape[-1]
    asked = range(0, size, max(1, -(-size // _MOST_ASKED)))
    are_read = [_moves(norm, x, plain, index) for index in asked]
    return any(are_read) and not all(are_read)


def _moves(norm: Norm, x: Tensor, plain: Tensor, index: int) -> bool:
    """Whether that value of the last axis changes what another one is multiplied by."""
    changed = x.clone()
    changed[..., index] *= _TIMES
    other = (index + 1) % x.shape[-1]
    return _differ((norm(changed) / changed)[..., other], plain[..., other])


def _is_of_lengths(norm: Norm, x: Tensor, plain: Tensor) -> bool:
    """Whether all channels are multiplied by one number, with which the mean of the squared lengths is one."""
    if x.ndim < _FEWEST_AXES or x.shape[-2] < 2 or x.shape[-1] < 2:  # noqa: PLR2004
        return False
    changed = x.clone()
    changed[..., 0, :] *= _TIMES
    squared = float((plain * x).double().square().sum(-1).mean())
    return abs(squared**0.5 - 1) <= _ONE and _differ((norm(changed) / changed)[..., 1:, :], plain[..., 1:, :])


def _differ(one: Tensor, other: Tensor) -> bool:
    kept = torch.isfinite(one) & torch.isfinite(other)
    return bool(((one - other).abs() > _SAME * other.abs())[kept].any())
