"""Norms asked on many values of one shape: whether each place of the answer is the normalised, scaled and shifted.

Any form has that property, whatever its weights, epsilon and axes are: LayerNorm (arXiv 1607.06450, equation 4),
RMSNorm and partial RMSNorm (1910.07467), a norm to unit length.
"""

from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor

_TIMES = 24
_FEWEST = 4  # values that are normalised together
_SHIFT = 1.0  # of the size, upwards: some divide by the largest value, which has to be above zero
_LARGE = 8.0  # beside which an epsilon is nothing
_MOST_PEAKED = 2.0
_MOST_SHARES = 64
_OF_IMAGES = 3  # dimensions and that of the asking: channels may come second
_TOLERANCE = 0.05
SMALLER = 1 / 32  # below where some cut their input off, and epsilons are still less
_FEWEST_ALIKE, _ALIKE, _ALIKE_IF_COARSE, _HALF_BITS = 32, 0.02, 0.2, 16  # values that equal others of their row
DEFINITIONS = {
    "rmsnorm": "x / sqrt(mean(x**2))",
    "layernorm": "(x - mean(x)) / sqrt(var(x))",
    "l2norm": "x / sqrt(sum(x**2))",
}
NORMS = frozenset(DEFINITIONS)


class Affine:
    """What a norm makes of the normalised at each place: a factor, what is added, and how far from it it is."""

    def __init__(self, normed: Tensor, answers: Tensor) -> None:
        centred, moved = normed - normed.mean(0), answers - answers.mean(0)
        square = centred.square().sum(0)
        self.factor = torch.where(square > 0, (centred * moved).sum(0) / square.clamp(min=1e-30), 0.0)
        self.added = answers.mean(0) - self.factor * normed.mean(0)
        left, whole = (moved - self.factor * centred).square().sum(), moved.square().sum()
        self.departure = float((left / whole).sqrt()) if float(whole) else 0.0


def values_for_norms(like: Tensor, seed: int, times: float = 1.0) -> list[Tensor]:
    """Values of that shape and dtype, `times` as large, of unlike sizes, means and peaks wherever they are normed."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(shape: torch.Size | list[int]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    given = []
    for step in range(_TIMES):
        x = drawn(like.shape)
        power = _MOST_PEAKED * step / (_TIMES - 1)
        x = x * x.abs() ** power
        x = x / x.square().mean().sqrt()
        x = x + _SHIFT * drawn(torch.Size([1] * like.ndim)).abs().clamp(max=1)
        size = _LARGE * 2 ** drawn(torch.Size([1] * like.ndim)).clamp(-2, 2)
        given.append((times * size * x).to(like))
    return given


def fitted(operation: str, given: list[Tensor], alone: Callable[[Tensor], Tensor]) -> tuple[Affine, Tensor] | None:
    """The form that what it gives is nearest to, with the normalised; None where nothing can be said of it.

    The first is taken that it agrees with.
    """
    answers = torch.stack([alone(each).double() for each in given])
    x = torch.stack(given).double()
    if answers.shape != x.shape or not bool(torch.isfinite(answers).all()) or not bool(answers.any()):
        return None
    best: tuple[Affine, Tensor] | None = None
    for normed in _forms(operation, x):
        affine = Affine(normed, answers)
        if best is None or affine.departure < best[0].departure:
            best = affine, normed
        if affine.departure <= _TOLERANCE:
            break
    return best


def agrees(affine: Affine) -> bool:
    """Whether that is what it gives."""
    return affine.departure <= _TOLERANCE


def is_of_another_kind(given: list[Tensor], alone: Callable[[Tensor], Tensor]) -> bool:
    """Whether some places pass through as they are, or it rounds or cuts off: then nothing can be said of it."""
    answers = torch.stack([alone(each) for each in given])
    is_kept = (answers == torch.stack(given)).all(0)
    if bool(is_kept.any()) and not bool(is_kept.all()):
        return True
    rows = [each[each != 0].tolist() for each in answers.flatten(0, -2)[:, :_FEWEST_ALIKE].unbind()]
    again = sum(len(row) - len(set(row)) for row in rows)
    is_coarse = torch.finfo(answers.dtype).bits <= _HALF_BITS
    return again > (_ALIKE_IF_COARSE if is_coarse else _ALIKE) * sum(map(len, rows))


def _forms(operation: str, x: Tensor) -> Iterator[Tensor]:
    """The normalised, in each form: over the last axis first, over other axes, over shares and groups of channels."""
    axes = sorted(
        (each for count in range(1, x.ndim) for each in combinations(range(1, x.ndim), count)),
        key=lambda each: (len(each), -each[0]),
    )
    whole = [over for over in axes if torch.Size(x.shape[axis] for axis in over).numel() >= _FEWEST]
    for over in whole:
        yield from _normed(operation, x, over)
    for axis in {x.ndim - 1, 2 if x.ndim > _OF_IMAGES else x.ndim - 1}:
        size = x.shape[axis]
        for count in (each for each in range(2, size) if size % each == 0 and size // each >= _FEWEST):
            for groups in (x.unflatten(axis, (count, -1)), x.unflatten(axis, (-1, count)).transpose(axis, axis + 1)):
                for each in _normed(operation, groups, (axis + 1,)):
                    laid = each if groups.is_contiguous() else each.transpose(axis, axis + 1)
                    yield laid.reshape(x.shape)
        for share in range(1, size, max(1, size // _MOST_SHARES)) if operation == "rmsnorm" else ():
            yield x * x.narrow(axis, 0, share).square().mean(axis, keepdim=True).rsqrt()

    for over in whole:  # without the mean of each season, as Autoformer's (arXiv 2106.13008) has it
        for each in _normed(operation, x, over):
            yield from (each - each.mean(axis, keepdim=True) for axis in range(1, x.ndim) if axis not in over)


def _normed(operation: str, x: Tensor, over: tuple[int, ...]) -> Iterator[Tensor]:
    if operation == "layernorm":
        centred = x - x.mean(over, keepdim=True)
        yield centred * centred.square().mean(over, keepdim=True).clamp(min=1e-30).rsqrt()
    yield x * x.square().mean(over, keepdim=True).clamp(min=1e-30).rsqrt()
