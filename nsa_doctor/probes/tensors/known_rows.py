"""Which rows of a tensor occur among those of other tensors, whatever their layout: by random projections of rows.

Trailing zeros of a row count for nothing, nor do values that only hide: a row of scores that is as long as the past
is the row that is as long as the sequence. Of rows that are as long as no known one of the operation, as those over the
slots of a ring, what is not hidden counts in any order. Rows of equal values, and rows of one, tell nothing and count
as known.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from nsa_doctor.probes.internal import untraced

_NUM_DIRECTIONS = 3
_ROUNDINGS = 1e6  # what is computed of other things differs by more than any order of its sums makes it differ
_ROUNDINGS_OF_FEW_DIGITS = 64.0  # or everything would be like something else
_LARGEST = 1e30  # beyond it a value hides and is not one
_MOST_ROWS, _MOST_ALIKE = 20_000, 64
_MOST_CUT, _MOST_DIMS = 32, 6
_WAYS = (False, True)  # of asking which dimension counts tokens
_MOST_BYTES = 1 << 28
_MOST_COLUMNS = 8192
_MOST_COMPARED = 1 << 26
_PRODUCTS = ("bmm", "mm")
_GRID = 2.0**-36  # rows whose projections are this near, beside the largest, count as one in their order


@dataclass(frozen=True)
class Asked:
    """What a tensor is that is asked about: the operation that made it ("" for a view), and its tokens."""

    operation: str
    start: int
    width: int

    @property
    def end(self) -> int:
        """The first token that comes after it."""
        return self.start + self.width


@dataclass
class KnownRows:
    """Rows that were learnt of one pass over `length` tokens, each with where it stands in its tensor."""

    length: int
    _parts: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    _tensors: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    _sorted: tuple[Tensor, ...] | None = None
    _operations: dict[str, int] = field(default_factory=dict)
    _described: tuple[Tensor, Tensor, dict[bool, Tensor]] | None = None
    _wide: list[Tensor] = field(default_factory=list)
    _wide_by: list[tuple[str, Tensor]] = field(default_factory=list)
    _bags: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    _widths: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    _cut: dict[int, Tensor] = field(default_factory=dict)
    _num_bytes: int = 0

    def learn(self, tensor: Tensor, operation: str) -> None:
        """Know the rows of this tensor, which that operation made, from now on."""
        if not tells(tensor) or tensor.numel() // tensor.shape[-1] > 50 * _MOST_ROWS or tensor.ndim > _MOST_DIMS + 1:
            return
        with untraced(), torch.no_grad():
            projected = _projected(tensor)[0]
            self._parts.append((projected, torch.full((len(projected),), len(self._tensors)), _indices(tensor)))
            self._tensors.append((operation, tuple(tensor.shape)))
            self._operations.setdefault(operation, len(self._operations))
            self._widths[operation].add(tensor.shape[-1])
            self._bags[operation].append(_bags(tensor)[0])
            if tensor.shape[-1] <= self.length and self._num_bytes < _MOST_BYTES:
                self._num_bytes += tensor.nbytes
                self._wide.append(tensor.detach().reshape(-1, tensor.shape[-1]).clone())
                self._wide_by.append((operation, self._wide[-1]))
        self._sorted = self._described = None

    def unknown(self, tensor: Tensor, asked: Asked) -> Tensor | None:
        """Numbers of the rows that are not known, where some are not; None where all are.

        Where known tensors of the same operation have this one's shape, or its shape for all tokens, a row has to stand
        at the same place in one of them, of its own token; failing these, in one that another operation made, or, where
        there is one row of each token, at its own in any; where there is no such tensor at all, anywhere. A row of as
        many columns as there are tokens so far may be the beginning of a longer one.
        """
        if not tells(tensor) or not self._parts or tensor.ndim > _MOST_DIMS + 1:
            return None
        with untraced(), torch.no_grad():
            found = self._unknown(tensor, asked)
            if found is not None and tensor.ndim > 1 and tells(tensor.transpose(-1, -2)):
                found = None if self._unknown(tensor.transpose(-1, -2), asked) is None else found
            found = found if found is None else self._not_cut(tensor, found, asked.end)
            found = found if found is None else self._in_no_order(tensor, found, asked.operation)
            return found if found is None else self._not_part_of(tensor, found, asked.operation)

    def out_of_order(self, tensor: Tensor) -> Tensor | None:
        """A row that stands behind a later token's in what holds rows of several tokens; None where none does."""
        if not tells(tensor) or not self._parts or not 1 < tensor.ndim <= _MOST_DIMS + 1:
            return None
        with untraced(), torch.no_grad():
            tokens = self._tokens_of(tensor)
            for dim in range(tokens.ndim):
                along = tokens.movedim(dim, -1).reshape(-1, tokens.shape[dim])
                for other, line in enumerate(along):
                    steps = line[line >= 0].diff()
                    if bool((steps < 0).any()) and bool((steps > 0).any()):
                        rows = tensor.movedim(dim, -2).reshape(-1, tokens.shape[dim], tensor.shape[-1])
                        last = int((line >= 0).nonzero()[int((steps < 0).nonzero()[0, 0]) + 1, 0])
                        return rows[other, last]
        return None

    def _comparable(self, shape: Sequence[int], asked: Asked) -> tuple[Tensor, bool]:
        """Which tensors a row has to stand at its own place in [N]; none where it may stand anywhere.

        And whether the same operation made them: else one row of a token may stand at it in any other too.
        """
        sizes, kinds, _ = self._shapes()
        own = _padded(shape)
        fits = (sizes == own) | ((sizes == self.length) & (own == asked.width))
        fits[:, len(shape) :] = True  # the number of dimensions is compared by itself, and rows may be of any width
        alike = (kinds[:, 0] == len(shape)) & fits[:, : len(shape) - 1].all(1) & bool(asked.operation)
        same = alike & (kinds[:, 1] == self._operations.get(asked.operation, -1))
        is_same = bool(same.any())
        return same if is_same else alike, is_same

    def _shapes(self) -> tuple[Tensor, Tensor, dict[bool, Tensor]]:
        """Sizes [N, dimensions] of the tensors, how many and which operation [N, 2], and those that count tokens."""
        if self._described is None:
            shapes = [shape for _, shape in self._tensors]
            kinds = [(len(shape), self._operations[operation]) for operation, shape in self._tensors]
            of_tokens = {way: torch.tensor([self._dims_of_tokens(shape, way) for shape in shapes]) for way in _WAYS}
            self._described = (torch.stack([_padded(shape) for shape in shapes]), torch.tensor(kinds), of_tokens)
        return self._described

    def _not_cut(self, tensor: Tensor, numbers: Tensor, end: int) -> Tensor | None:
        """Those of the rows that are no beginning of a longer row either."""
        if len(numbers) > _MOST_CUT or tensor.shape[-1] != end:
            return numbers
        if end not in self._cut:
            wide = [each[:, :end] for each in self._wide if each.shape[1] > end]
            self._cut[end] = torch.cat([_projected(each)[0] for each in wide]) if wide else torch.empty((0, 3))
        rows, bounds, _ = _projected(tensor.reshape(-1, end)[numbers])
        pairs = zip(rows, bounds, strict=True)
        near = torch.stack([((self._cut[end] - one).abs() <= bound).all(1).any() for one, bound in pairs])
        return None if bool(near.all()) else numbers[~near]

    def _in_no_order(self, tensor: Tensor, numbers: Tensor, operation: str) -> Tensor | None:
        """Those of the rows that hold other values than any known one of the operation, whatever their order."""
        if len(numbers) > _MOST_CUT or not operation or tensor.shape[-1] in self._widths[operation]:
            return numbers
        known = torch.cat(self._bags[operation]) if self._bags[operation] else torch.empty((0, 3), dtype=torch.float64)
        bags, bounds = _bags(tensor.reshape(-1, tensor.shape[-1])[numbers])
        near = [((known - one).abs() <= bound).all(1).any() for one, bound in zip(bags, bounds, strict=True)]
        is_near = torch.stack(near)
        return None if bool(is_near.all()) else numbers[~is_near]

    def _not_part_of(self, tensor: Tensor, numbers: Tensor, operation: str) -> Tensor | None:
        """Those of the rows, of products, that hold a value which no known row of the operation has beside the others.

        Scores of some of the keys are scores: which are meant is for a mask to say.
        """
        width = tensor.shape[-1]
        wide = [] if operation not in _PRODUCTS else [each for name, each in self._wide_by if name == operation]
        known = [
            each for each in wide if each.shape[1] > width and each.numel() * width * len(numbers) < _MOST_COMPARED
        ]
        if not known or width in self._widths[operation] or len(numbers) > _MOST_CUT:
            return numbers
        rows, roundings = tensor.reshape(-1, width)[numbers].cpu(), _ROUNDINGS * torch.finfo(tensor.dtype).eps
        is_part = torch.zeros(len(rows), dtype=torch.bool)
        for each in known:
            near = (rows[:, None, :, None] - each[None, :, None]).abs() <= roundings * each.abs().amax()
            is_part |= near.any(3).all(2).any(1)
        return None if bool(is_part.all()) else numbers[~is_part]

    def _tokens_of(self, tensor: Tensor) -> Tensor:
        """Of which token each row is [...], by the first tensor of all tokens that has it; -1 where none does."""
        projected, bound, is_even = _projected(tensor)
        tokens, first = torch.full((len(projected),), -1), torch.full((len(projected),), len(self._tensors))
        _, _, numbers, indices = self._table()
        sizes, _, _ = self._shapes()
        for rows, at in self._alike(projected, bound, is_even):
            counts = sizes[numbers[at], :_MOST_DIMS] == self.length
            is_earlier = (counts.sum(1) == 1) & (numbers[at] < first[rows])
            tokens[rows[is_earlier]] = (indices[at] * counts).sum(1)[is_earlier]
            first[rows[is_earlier]] = numbers[at][is_earlier]
        return tokens.reshape(tensor.shape[:-1])

    def _unknown(self, tensor: Tensor, asked: Asked) -> Tensor | None:
        projected, bound, is_even = (each[:_MOST_ROWS] for each in _projected(tensor))
        _, _, numbers, indices = self._table()
        due = _indices(tensor)[:_MOST_ROWS]
        comparable, are_same = self._comparable(tensor.shape, asked)
        has_comparable = bool(comparable.any())
        sizes, _, of_tokens_by_way = self._shapes()
        of_tokens = of_tokens_by_way[are_same or len(projected) != asked.width]
        shifted = torch.zeros((len(self._tensors), _MOST_DIMS), dtype=torch.long)
        inner = slice(tensor.ndim - 1)  # in these dimensions they have all tokens, and the other its own
        shifted[:, inner] = (comparable[:, None] & (sizes != _padded(tensor.shape)))[:, inner].long()
        known = is_even.clone()
        for rows, at in self._alike(projected, bound, known):
            if has_comparable:
                is_there = indices[at] == due[rows] + asked.start * shifted[numbers[at]]
                is_of_token = of_tokens[numbers[at]] & (indices[at] >= asked.start) & (indices[at] < asked.end)
                known[rows] = (comparable[numbers[at]] & is_there.all(1)) | is_of_token.any(1)
            else:
                known[rows] = True
        unknown = (~known).nonzero()[:, 0]
        return unknown if len(unknown) else None

    def _alike(self, projected: Tensor, bound: Tensor, settled: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Numbers of rows that are not settled yet, with where a row of the table stands that is alike; one of each."""
        keys, values, _, _ = self._table()
        reach = bound + _GRID * torch.maximum(-keys[0], keys[-1])
        low, high = (torch.searchsorted(keys, projected[:, 0] + sign * reach) for sign in (-1.0, 1.0))
        rows = torch.arange(len(projected))
        for offset in range(_MOST_ALIKE):
            rows = rows[~settled[rows] & (low[rows] + offset < high[rows])]
            if not len(rows):
                return
            at = low[rows] + offset
            is_alike = ((values[at] - projected[rows]).abs() <= bound[rows, None]).all(1)
            yield rows[is_alike], at[is_alike]

    def _dims_of_tokens(self, shape: Sequence[int], is_strict: bool) -> list[bool]:
        """Which dimension before the last counts tokens, where one row of each is all there is."""
        is_enough = not is_strict and math.prod(shape[:-1]) == self.length
        sizes = [size == self.length and is_enough for size in shape[:-1]]
        return sizes + [False] * (_MOST_DIMS - len(sizes))

    def _table(self) -> tuple[Tensor, ...]:
        if self._sorted is None:
            joined = [torch.cat(parts) for parts in zip(*self._parts, strict=True)]
            grid = joined[0][:, 0].abs().amax().clamp_min(1e-300) * _GRID
            rounded = (joined[0][:, 0] / grid).round()
            order = rounded.argsort(stable=True)  # of rows alike the earliest comes first
            self._sorted = (rounded[order] * grid, *(each[order] for each in joined))
        return self._sorted


def _padded(shape: Sequence[int]) -> Tensor:
    """A shape of so many sizes as the most that is looked at has."""
    return torch.tensor([*shape, *[-1] * (_MOST_DIMS + 1 - len(shape))])


def row_of(tensor: Tensor, number: int) -> Tensor:
    """The row of that number, as a view of the tensor."""
    index: list[int] = []
    for size in reversed(tensor.shape[:-1]):
        index.append(number % size)
        number //= size
    for at in reversed(index):
        tensor = tensor.select(0, at)
    return tensor


def tells(tensor: Tensor) -> bool:
    """Whether rows of this tensor can be recognised: they are of several values, and these of some digits."""
    is_dense = tensor.layout == torch.strided and tensor.is_floating_point()
    return is_dense and tensor.ndim > 0 and tensor.numel() > 0 and 1 < tensor.shape[-1] <= _MOST_COLUMNS


def _projected(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Projections [N, 3] of N rows, by how much rounding moves each, and whether all its values are equal."""
    rows = tensor.detach().reshape(-1, tensor.shape[-1]).cpu()
    wide = torch.where(rows.abs() < _LARGEST, rows.double(), 0.0)  # also what is not a number
    size = wide.square().sum(1).sqrt()
    roundings = _ROUNDINGS if tensor.dtype == torch.float64 else _ROUNDINGS_OF_FEW_DIGITS
    bound = roundings * torch.finfo(tensor.dtype).eps * size
    return wide @ _directions()[: tensor.shape[-1]], bound, (wide == wide[:, :1]).all(1)


def _bags(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Sums [N, 3] over what is not hidden of N rows, in whatever order, and by how much rounding moves each."""
    wide = tensor.detach().reshape(-1, tensor.shape[-1]).cpu().double()
    wide = torch.where(wide.abs() < _LARGEST, wide, 0.0)
    powers = torch.stack((wide, wide * wide.abs(), wide.pow(3)), 2)
    roundings = _ROUNDINGS if tensor.dtype == torch.float64 else _ROUNDINGS_OF_FEW_DIGITS
    return powers.sum(1), roundings * torch.finfo(tensor.dtype).eps * powers.abs().sum(1)


@cache
def _directions() -> Tensor:
    """The first columns are the same however many there are."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn((_MOST_COLUMNS, _NUM_DIRECTIONS), dtype=torch.float64, generator=generator)


def _indices(tensor: Tensor) -> Tensor:
    """[N, dimensions]: where each row stands, -1 in dimensions that the tensor has not."""
    sizes = tensor.shape[:-1]
    numbers, found = torch.arange(tensor.numel() // tensor.shape[-1]), list[Tensor]()
    for size in reversed(sizes):
        found.insert(0, numbers % size)
        numbers = numbers // size
    missing = [torch.full_like(numbers, -1)] * (_MOST_DIMS - len(found))
    return torch.stack([*found, *missing], 1)
