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
    """Whether some values of the last axis move none, or groups of them, as vectors of 1, 3 and 5, come to other sizes.

    Groups that are all of one size, which is not one, are divided by the wrong number.
    """
    count, squares = x.shape[-1], (plain * x).double().square()
    groups = [_group(norm, x, plain, index) for index in range(0, count, max(1, -(-count // _MOST_ASKED)))]
    sizes = [float(squares[..., group].mean()) for group in groups if group.any()]
    return len(sizes) > 0 and (len(sizes) < len(groups) or max(sizes) - min(sizes) > _ONE * max(sizes))


def _group(norm: Norm, x: Tensor, plain: Tensor, index: int) -> Tensor:
    """A mask of that value of the last axis and of those others which are multiplied otherwise where it is another."""
    changed = x.clone()
    changed[..., index] *= _TIMES
    group = _differing(norm(changed) / changed, plain).flatten(0, -2).any(0)
    group[index] = False
    group[index] = group.any()
    return group


def _is_of_lengths(norm: Norm, x: Tensor, plain: Tensor) -> bool:
    """Whether all channels are multiplied by one number, with which the mean of the squared lengths is one."""
    if x.ndim < _FEWEST_AXES or x.shape[-2] < 2 or x.shape[-1] < 2:
        return False
    changed = x.clone()
    changed[..., 0, :] *= _TIMES
    squared = float((plain * x).double().square().sum(-1).mean())
    return abs(squared**0.5 - 1) <= _ONE and _differ((norm(changed) / changed)[..., 1:, :], plain[..., 1:, :])


def _differ(one: Tensor, other: Tensor) -> bool:
    return bool(_differing(one, other).any())


def _differing(one: Tensor, other: Tensor) -> Tensor:
    return ((one - other).abs() > _SAME * other.abs()) & torch.isfinite(one) & torch.isfinite(other)
