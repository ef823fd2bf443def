"""Whether a matrix of rows of a table of distances is one of distances: along a sequence, a plane or a film of planes.

Everything here takes whole numbers [N, N]: the row that is read for each query and key.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

FEWEST = 12  # tokens from which on a matrix says something
_MOST_EXTRA = 8  # tokens of a class, registers
_MOST_STRIDE = 4
_FEWEST_OWN = 4  # distances of a token to itself from which on they are none
_SHORTEST_LEVEL = 3  # tokens in a row that make a level, or a part, of a sequence
_FEWEST_FAR = 3  # rows of each side from which on they are distances, and not just before and behind
_MOST_KEPT = 256


def is_by_place(matrix: Tensor) -> bool:
    """Whether rows follow from where a query and a key stand, and not from any distance of theirs.

    The distance of a token to itself is one and the same, wherever it stands: whatever the order of tokens, and
    whatever a distance is; where it changes from one level of resolution to the next alone, it is one of each level.
    Where it is the most, or the least, of all of a token's, it is one in a tree.
    """
    own = matrix.diagonal()
    if len(own.unique()) < _FEWEST_OWN or int(own.unique_consecutive(return_counts=True)[1].min()) >= _SHORTEST_LEVEL:
        return False
    if any(bool((own == end(0)).all() and (own == end(1)).all()) for end in (matrix.amax, matrix.amin)):
        return False
    return not is_of_distances(matrix)


def is_of_distances(matrix: Tensor) -> bool:
    """Whether what is moved on with its key has the row of before; tokens before all and behind may stand apart."""
    return _is_of_distances(len(matrix), tuple(matrix.unique(return_inverse=True)[1].flatten().tolist()))


@lru_cache(maxsize=_MOST_KEPT)
def _is_of_distances(size: int, numbers: tuple[int, ...]) -> bool:
    matrix = torch.tensor(numbers).reshape(size, size)
    total = len(matrix.unique())
    for inner in _without_others(matrix):
        is_telling = len(inner) == size or len(inner.unique()) >= max(3, total // 2)
        if is_telling and (_is_of_a_line(inner) or any(_is_of_a_grid(inner, each) for each in _grids(len(inner)))):
            return True
    return False


def is_along_a_line(matrix: Tensor) -> bool:
    """Whether the row is one of j - i."""
    return bool((matrix[1:, 1:] == matrix[:-1, :-1]).all())


def _without_others(matrix: Tensor) -> Iterator[Tensor]:
    size = len(matrix)
    most = min(_MOST_EXTRA, size // 3)
    for before, behind in product(range(most + 1), repeat=2):
        if before + behind <= most:
            yield matrix[before : size - behind, before : size - behind]
    for extra in range(most + 1, size - FEWEST + 1):
        for inner, others in (
            (matrix[extra:, extra:], (matrix[:extra], matrix[:, :extra])),
            (matrix[:-extra, :-extra], (matrix[-extra:], matrix[:, -extra:])),
        ):
            if not any(bool(torch.isin(each, inner).any()) for each in others):
                yield inner


def _is_of_a_line(matrix: Tensor) -> bool:
    """Whether a query and a key that are both moved on, by how much each is, have the row of before.

    By how much is the period of what repeats, as codebooks in turns, for both alike.
    """
    periods = ((each, each) for each in range(_MOST_STRIDE + 1, len(matrix) // 2 + 1))
    strides = (*product(range(1, _MOST_STRIDE + 1), repeat=2), *periods)
    return any(bool((matrix[one:, other:] == matrix[:-one, :-other]).all()) for one, other in strides)


def _grids(size: int) -> Iterator[tuple[int, ...]]:
    """Sizes of planes and of films of planes that have so many places."""
    for first in range(2, size // 2 + 1):
        if size % first == 0:
            yield first, size // first
            yield from ((first, *rest) for rest in _grids(size // first) if len(rest) == 2)


def _is_of_a_grid(matrix: Tensor, sizes: tuple[int, ...]) -> bool:
    """Whether it is of distances along each side of a grid."""
    grid, num_sides = matrix.reshape(*sizes, *sizes), len(sizes)
    most = _MOST_STRIDE if num_sides == 2 else 1
    for side, size in enumerate(sizes):
        strides = product(range(1, min(most, size - 1) + 1), repeat=2)
        if not any(_moves(grid, side, side + num_sides, one, other) for one, other in strides):
            return False
    return True


def _moves(grid: Tensor, query: int, key: int, one: int, other: int) -> bool:
    size = grid.shape[query]
    later = grid.narrow(query, one, size - one).narrow(key, other, size - other)
    sooner = grid.narrow(query, 0, size - one).narrow(key, 0, size - other)
    return bool((later == sooner).all())


def shared_offsets(
    matrix: Tensor, num_rows: int, windows: list[tuple[int, int]]
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Two different offsets (rows, columns) of a window that share a row of a table which has one for each.

    windows: what is known of the window's size; what is a distance along a line is looked at with that alone. Offsets
    on both sides of a token that share rows everywhere are meant to.
    """
    found = None
    for inner in _at_one_end(matrix):
        for sizes in _grids(len(inner)):
            if len(sizes) != 2 or not 0 <= num_rows - _offsets(sizes) <= 3:
                continue
            if is_along_a_line(inner) and (sizes not in windows or min(sizes) < 3):
                continue
            if _is_exactly_of(inner, sizes):
                shared = _shared(inner, sizes)
                if shared is None:
                    return None
                found = found or shared
    return found


def _at_one_end(matrix: Tensor) -> Iterator[Tensor]:
    for extra in range(min(_MOST_EXTRA, len(matrix) // 3) + 1):
        yield matrix[extra:, extra:]
        if extra:
            yield matrix[:-extra, :-extra]


def _offsets(sizes: tuple[int, ...]) -> int:
    return (2 * sizes[0] - 1) * (2 * sizes[1] - 1)


def _is_exactly_of(matrix: Tensor, sizes: tuple[int, ...]) -> bool:
    grid = matrix.reshape(*sizes, *sizes)
    return _moves(grid, 0, 2, 1, 1) and _moves(grid, 1, 3, 1, 1)


def _shared(matrix: Tensor, sizes: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]] | None:
    height, width = sizes
    grid, seen = matrix.reshape(*sizes, *sizes), dict[int, tuple[int, int]]()
    rows = {
        (down, right): int(grid[max(-down, 0), max(-right, 0), max(down, 0), max(right, 0)])
        for down, right in product(range(1 - height, height), range(1 - width, width))
    }
    if any(
        all(row == rows[up * down, left * right] for (down, right), row in rows.items())
        for up, left in ((-1, 1), (1, -1), (-1, -1))
    ):
        return None
    for offset, row in rows.items():
        if row in seen:
            return seen[row], offset
        seen[row] = offset
    return None


def sides_alike(matrix: Tensor) -> tuple[int, int] | None:
    """Up to which distance both sides of a token share rows, and the first farther one at which they do not.

    None where they do at no distance, or at all; a row that a distance shares with none at all says nothing. Nor do
    near distances that share one row among themselves, or far ones that have no rows of their own on each side.
    """
    if not is_along_a_line(matrix):
        return None
    behind, ahead, own = matrix[1:, 0], matrix[0, 1:], matrix[0, 0]
    found = first_parting(behind == ahead) if bool((behind == ahead)[0]) and bool(behind[0] != own) else None
    if found is None:
        return None
    near, apart = found
    num_far = min(len(side[apart - 1 :].unique()) for side in (behind, ahead))
    is_each_its_own = len(behind[:near].unique()) == near
    return found if is_each_its_own and num_far >= max(near, _FEWEST_FAR) else None


def first_parting(alike: Tensor) -> tuple[int, int] | None:
    """How many distances from the first on are alike, and the first that is not; none beyond may be but the last."""
    if not bool(alike[0]) or bool(alike.all()):
        return None
    apart = int((~alike).nonzero()[0])
    beyond = alike[apart:]
    last = int((~beyond).nonzero()[-1])
    return (apart, apart + 1) if bool((~beyond[: last + 1]).all()) else None


def of_sides(values: Tensor) -> Tensor | None:
    """For each distance, whether it has the value of both sides [N - 1]; None where it is none of distances."""
    if not is_along_a_line(values):
        return None
    return torch.eq(values[1:, 0], values[0, 1:])
