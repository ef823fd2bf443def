"""Which lengths to examine: those a geometry changes at, or those that are known to be unlucky."""

import random
from collections.abc import Iterable, Sequence
from typing import Protocol

LARGEST_LENGTH = 1 << 24


class ChangesAtLengths(Protocol):
    """A geometry: it knows at which lengths something about it changes."""

    def change_lengths(self, max_length: int) -> list[int]:
        """Every such length up to `max_length`."""
        ...


def parse_lengths(text: str) -> list[int]:
    """Read `128,512`: in the order given, each once; raises ValueError with one sentence."""
    lengths: dict[int, None] = {}
    for part in text.split(","):
        word = part.strip()
        if not word.isascii() or not word.isdigit() or not 1 <= int(word) <= LARGEST_LENGTH:
            raise ValueError(
                f"lengths must be whole numbers from 1 to {LARGEST_LENGTH} separated by commas, got {word!r}"
            )
        lengths[int(word)] = None
    return list(lengths)


def boundary_lengths(geometry: ChangesAtLengths | None, max_length: int) -> list[int]:
    """Lengths up to `max_length` + 1 at which block code breaks, ascending: each with its neighbours on both sides.

    Those at which the geometry changes; without one, multiples of 64 (those of 128 and 512 are among them). Always
    powers of two, 1, 2, 3 and a few primes.
    """
    edges = range(64, max_length + 1, 64) if geometry is None else geometry.change_lengths(max_length)
    around = {length + step for length in (*edges, *_powers_of_two(max_length)) for step in (-1, 0, 1)}
    single = {length for length in (1, 2, 3, *_PRIMES) if length <= max_length}
    return sorted(length for length in around | single if 1 <= length <= max_length + 1)


def spread_lengths(geometry: ChangesAtLengths | None, max_length: int, count: int) -> list[int]:
    """At most `count` of the boundary lengths: the least, the greatest, every power of two, and others between."""
    lengths = [length for length in boundary_lengths(geometry, max_length) if length <= max_length]
    kept = {1, max_length, *_powers_of_two(max_length)} & set(lengths)
    others = [length for length in lengths if length not in kept]
    return sorted(kept | set(evenly(others, max(0, count - len(kept)))))


def evenly(among: Sequence[int], count: int) -> list[int]:
    """At most `count` of them, evenly spaced in their order, the last one among them."""
    if count >= len(among):
        return list(among)
    return [among[len(among) - 1 - (index * len(among)) // count] for index in reversed(range(count))]


def short_ones_first(among: Iterable[int], seed: int) -> list[int]:
    """All of them in a random order in which short ones tend to come first."""
    chance = random.Random(seed)  # noqa: S311 (an order, no secret)
    return sorted(among, key=lambda length: length * chance.random())


def nearest(length: int, among: Iterable[int]) -> list[int]:
    """The nearest of `among` below and above `length`."""
    lengths = set(among)
    below = [other for other in lengths if other < length]
    above = [other for other in lengths if other > length]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


_PRIMES = (5, 17, 37, 101, 257, 521, 1031, 2053)


def _powers_of_two(limit: int) -> list[int]:
    return [1 << exponent for exponent in range(limit.bit_length()) if 1 << exponent <= limit]
