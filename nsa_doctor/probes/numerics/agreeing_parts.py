"""Which part of each tensor of two runs has to agree: learnt from the runs themselves.

The first tokens, say, when later ones were changed. In a tensor of blocks or of flattened rows what differs begins at
some index of a dimension, and indices before it have to agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_OF = 0.6
_ROUNDINGS = 1e4  # two orders of the same sums may part by this many units in the last place


@dataclass
class AgreeingParts:
    """Of dimensions of a known size the first (or last) so many indices."""

    kept: dict[int, int]

    def knows(self, results: Sequence[Tensor]) -> bool:
        """Whether sizes that are known say which part of these has to agree, or everything has to."""
        return not self.kept or any(size in self.kept for result in results for size in result.shape)

    def differ(self, results: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
        """Whether any pair differs where it has to agree; what is learnt on the way counts from now on."""
        if not results or not expected:  # there was no room to keep them
            return False
        if len(results) != len(expected):
            return True
        return any(self._differs(result, other) for result, other in zip(results, expected, strict=True))

    def is_mixed(self, results: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
        """Whether a pair differs in all that it holds and has no dimension of which a part is to agree."""
        return bool(self.kept) and any(map(self._is_mixed, results, expected))

    def _is_mixed(self, result: Tensor, expected: Tensor) -> bool:
        if result.shape != expected.shape or any(size in self.kept for size in expected.shape):
            return False
        differs, edge = _differing(result, expected), 0 if all(count >= 0 for count in self.kept.values()) else -1
        return bool(differs.any()) and all(bool(differs.select(dim, edge).any()) for dim in range(differs.ndim))

    def _differs(self, result: Tensor, expected: Tensor) -> bool:
        own, other = self._narrowed(result, expected)
        if own.shape != other.shape:
            return True
        differs = _differing(own, other)
        if not bool(differs.any()) or self._agrees_about_the_middle(result, expected):
            return False
        if not self.kept or any(size in self.kept for size in expected.shape):
            return True
        is_at_front = all(bool(differs.select(dim, 0).any()) for dim in range(differs.ndim))
        return not self._learn(differs, torch.isfinite(other)) and is_at_front and self._is_cut_short(result, expected)

    def _narrowed(self, result: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
        """Both, cut to what has to agree; the first run's sizes are those that are known."""
        if result.ndim != expected.ndim:
            return result, expected
        for dim, (size, wanted) in enumerate(zip(result.shape, expected.shape, strict=True)):
            kept = self._kept_of(size, wanted)
            count = min(abs(kept), size) if self.kept else wanted
            starts = (0, 0) if kept >= 0 else (size - count, wanted - count)
            result, expected = (
                tensor.narrow(dim, start, min(count, tensor.shape[dim]))
                for tensor, start in zip((result, expected), starts, strict=True)
            )
        return result, expected

    def _kept_of(self, size: int, wanted: int) -> int:
        """How many of so many indices have to agree: of rows that lie behind one another, all of those kept."""
        if wanted in self.kept or size == wanted:
            return self.kept.get(wanted, wanted)
        folds = ((wanted // known, kept) for known, kept in self.kept.items() if wanted % known == 0)
        return next((fold * kept for fold, kept in folds if size % fold == 0), wanted)

    def _agrees_about_the_middle(self, result: Tensor, expected: Tensor) -> bool:
        """Whether one run is a head of the other, and of what is held for distances both hold the same for the short.

        Of T tokens there are distances from T - 1 down to 1 - T.
        """
        lacking = [size - wanted for size, wanted in zip(result.shape, expected.shape, strict=False)]
        is_head = any(count == size for size, count in self.kept.items())
        if not is_head or result.ndim != expected.ndim or not any(lacking) or any(each % 2 for each in lacking):
            return False
        for dim, more in enumerate(lacking):
            if more < 0:
                expected = expected.narrow(dim, -more // 2, result.shape[dim])
            elif more > 0:
                result = result.narrow(dim, more // 2, expected.shape[dim])
        return not bool(_differing(result, expected).any())

    def _is_cut_short(self, result: Tensor, expected: Tensor) -> bool:
        """Whether one run is a head of the other, and has less in some dimension: in blocks of tokens, say."""
        is_head = any(count == size for size, count in self.kept.items())
        return is_head and any(size < wanted for size, wanted in zip(result.shape, expected.shape, strict=True))

    def _learn(self, differs: Tensor, is_finite: Tensor) -> bool:
        """In a tensor with no dimension known yet, one that agrees at its beginning (or end) is known from now on.

        And differs beyond: of the features of a largest value, some here and there are another token's. Scores that are
        all hidden agree with any others.
        """
        is_front = all(count >= 0 for count in self.kept.values())
        for dim, size in enumerate(differs.shape):
            indices = differs.movedim(dim, 0).reshape(size, -1).any(1).nonzero()
            count = int(indices[0]) if is_front else int(indices[-1]) + 1 - size
            is_beyond = len(indices) > _MOST_OF * (size - abs(count))
            agreeing = is_finite.movedim(dim, 0)[:count] if is_front else is_finite.movedim(dim, 0)[count:]
            if count and is_beyond and size not in map(abs, self.kept.values()) and bool(agreeing.any()):
                self.kept[size] = count
                return True
        return False


def _differing(result: Tensor, expected: Tensor) -> Tensor:
    """Which elements differ by more than rounding; equal infinities and two NaN do not."""
    if not (result.is_floating_point() or result.is_complex()):
        return result != expected
    eps = torch.finfo(result.dtype).eps
    scale = torch.where(torch.isfinite(expected), expected.abs(), 0.0)
    bound = _ROUNDINGS * eps * (scale.max() if scale.numel() else 0.0)
    same = (result == expected) | (result.isnan() & expected.isnan())
    return ~(same | ((result - expected).abs() <= bound))
