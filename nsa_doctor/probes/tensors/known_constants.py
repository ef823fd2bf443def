"""Positions and masks of one pass over all tokens, and whether those of a step are the ones of its tokens."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from nsa_doctor.probes.internal import untraced
from nsa_doctor.probes.tensors.known_rows import Asked

_MOST_ELEMENTS = 20_000
_LEAST_DIMS = 2  # of a mask: queries and keys
_Line = tuple[str, int]
_Key = tuple[str, int, torch.dtype]

# the tokens' own, that of other tokens, of one shape for whatever tokens, and nothing it could be a part of
Standing = Literal["in place", "elsewhere", "alike", "unknown"]


@dataclass
class KnownConstants:
    """What one pass over `length` tokens computed without its input, by the operation and the lines under way."""

    length: int
    _by_line: dict[tuple[_Key, tuple[_Line, ...]], list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    _by_operation: dict[_Key, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def learn(self, tensor: Tensor, operation: str, lines: tuple[_Line, ...]) -> None:
        """Know what that operation made on those lines."""
        if tensor.layout == torch.strided and 0 < tensor.numel() <= _MOST_ELEMENTS:
            with untraced():
                key, kept = (operation, tensor.ndim, tensor.dtype), tensor.detach().clone()
                self._by_line[key, lines].append(kept)
                self._by_operation[key].append(kept)

    def standing(self, tensor: Tensor, asked: Asked, lines: tuple[_Line, ...]) -> Standing:
        """How it stands to what the same operation made in the pass, on the same lines where these made any."""
        ends = {self.length: {asked.width: asked.start, asked.end: 0}}
        found: Standing = "unknown"
        for known in self._known(tensor, asked.operation, lines):
            if known.shape == tensor.shape:
                return "alike"
            cut = known
            for dim, (own, size) in enumerate(zip(tensor.shape, known.shape, strict=True)):
                start = 0 if own == size else ends.get(size, {}).get(own)
                if start is None:
                    break
                cut = cut.narrow(dim, start, own)
            else:
                if torch.equal(cut, tensor):
                    return "in place"
                found = "elsewhere"
        return found

    def shows_more(self, tensor: Tensor, asked: Asked, lines: tuple[_Line, ...]) -> bool:
        """Whether it is a mask that shows all its keys, and the pass, on the same lines, shows these tokens more.

        Keys are missing then; what hides them is not at fault.
        """
        if tensor.dtype != torch.bool or tensor.ndim < _LEAST_DIMS or tensor.shape[-2] != asked.width:
            return False
        masks = self._by_line.get(((asked.operation, tensor.ndim, tensor.dtype), lines), [])
        rows = [known[..., asked.start : asked.end, :] for known in masks if known.shape[-2] == self.length]
        least = [int(each.sum(-1).min()) for each in rows if each.shape[-1] > tensor.shape[-1]]
        return bool(least) and bool(tensor.all()) and min(least) > tensor.shape[-1]

    def is_again(self, tensor: Tensor, operation: str, lines: tuple[_Line, ...], earlier: Tensor) -> bool:
        """Whether it is what an earlier step had, and there once among more in what the same lines gave in the pass.

        As positions of blocks that begin at zero again at every step.
        """
        if tensor.ndim != 1 or earlier.shape != tensor.shape or not torch.equal(earlier, tensor):
            return False
        wide = self._by_line.get(((operation, 1, tensor.dtype), lines), [])
        count = len(tensor)
        return any(
            len(known) > count and int((known.unfold(0, count, 1) == tensor).all(1).sum()) == 1 for known in wide
        )

    def _known(self, tensor: Tensor, operation: str, lines: tuple[_Line, ...]) -> list[Tensor]:
        key = (operation, tensor.ndim, tensor.dtype)
        return self._by_line.get((key, lines)) or self._by_operation.get(key, [])
