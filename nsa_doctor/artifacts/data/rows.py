"""Rows of tokens as things to recognise: which are the same, which lie inside others, which say nothing."""

from collections.abc import Iterable, Sequence

import numpy as np

from nsa_doctor.artifacts.data.batch import Array, Batch

_FEWEST_TOKENS = 3  # different ones that a stretch must hold to be worth recognising
_FEWEST_TURNS = 3
_FACTOR = 6364136223846793005
_INVERSE = pow(_FACTOR, -1, 1 << 64)
_MIX = np.uint64(0x9E3779B97F4A7C15)


def keys(batches: Iterable[Batch]) -> list[bytes]:
    """One for each row, in their order; equal for equal rows. Those that say nothing are left out."""
    return [row.tobytes() for batch in batches for row in _whole(batch.inputs) if _says_something(row)]


def constant_rows(batches: Iterable[Batch]) -> list[int]:
    """The token of each row that holds one alone."""
    rows = [row for batch in batches for row in _whole(batch.inputs)]
    return [int(row[0]) for row in rows if len(row) > 1 and bool((row == row[0]).all())]


def num_repeats(seen: Sequence[bytes]) -> int:
    """Rows that came before."""
    return len(seen) - len(set(seen))


def is_in_epochs(seen: Sequence[bytes], batch_size: int) -> bool:
    """Whether rows come back only after all others have come, as those of a small corpus read again and again."""
    size = len(set(seen))
    epochs = [seen[start : start + size] for start in range(0, len(seen), size)]
    return size > batch_size and all(len(set(epoch)) == len(epoch) for epoch in epochs)


def rows_found_in(rows: Sequence[Batch], others: Sequence[Batch]) -> list[int]:
    """Numbers of the rows of which a half lies somewhere in the other batches; rows that say nothing apart."""
    wanted = [row for batch in rows for row in _whole(batch.inputs)]
    if not wanted or not others:
        return []
    length = max(1, min(len(row) for row in wanted) // 2)
    held = np.unique(np.concatenate([_windows(_whole(batch.inputs), length).ravel() for batch in others]))
    found = []
    for number, row in enumerate(wanted):
        halves = [row[:length], row[-length:]]
        telling = [half for half in halves if _says_something(half)]
        if telling and np.isin(_windows(np.stack(telling), length).ravel(), held).any():
            found.append(number)
    return found


def _says_something(row: Array) -> bool:
    """Whether it is more than one short stretch over and over, which rows of other documents may be too."""
    longest = len(row) // _FEWEST_TURNS
    repeats = any(bool((row[period:] == row[:-period]).all()) for period in range(1, longest + 1))
    return not repeats and (len(row) < _FEWEST_TOKENS or len(np.unique(row)) >= _FEWEST_TOKENS)


def _whole(rows: Array) -> Array:
    if rows.dtype.kind in "iub":
        return rows.astype(np.int64)
    return np.ascontiguousarray(rows, np.float64).view(np.int64)


def _windows(rows: Array, length: int) -> Array:
    """A hash of every stretch of `length` tokens of each row: a polynomial, modulo 2^64."""
    if rows.shape[1] < length:
        return np.empty((rows.shape[0], 0), np.uint64)
    values = rows.astype(np.uint64) * _MIX + np.uint64(1)
    values = values ^ (values >> np.uint64(29))
    total = np.zeros((rows.shape[0], rows.shape[1] + 1), np.uint64)
    total[:, 1:] = np.add.accumulate(values * _powers(_FACTOR, rows.shape[1]), axis=1)
    stretches = total[:, length:] - total[:, :-length]
    return stretches * _powers(_INVERSE, stretches.shape[1])  # so that it has one hash wherever it stands


def _powers(base: int, count: int) -> Array:
    found = np.full(count, base, np.uint64)
    found[0] = 1
    return np.multiply.accumulate(found)
