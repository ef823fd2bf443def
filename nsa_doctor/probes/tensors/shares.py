"""Whether values are shares of one along an axis, as a softmax gives them."""

from torch import Tensor

_NEAR_ONE = 1e-3


def are_shares_of_one(values: Tensor, axis: int) -> bool:
    """Whether they are shares of one along the axis, in many places, and not all in one place or equal."""
    if values.ndim == 0 or not values.is_floating_point() or values.shape[axis] < 2 or values.numel() < 4:
        return False
    shares = values.detach().double()
    sums = shares.sum(axis)
    if not bool((shares >= 0).all()) or bool((shares.amax(axis) - shares.amin(axis) < _NEAR_ONE**2).all()):
        return False
    return bool(((sums - 1).abs()[sums != 0] < _NEAR_ONE).all())  # what a mask hides is nothing


def are_parts_of_one(values: Tensor, axis: int) -> bool:
    """Whether they are shares of one along the axis, of which some may be missing."""
    if values.ndim == 0 or values.shape[axis] < 2:
        return False
    sums = values.detach().double().sum(axis)
    return bool((values >= 0).all()) and bool((sums <= 1 + _NEAR_ONE).all()) and bool((sums > 0).any())
