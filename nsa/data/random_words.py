"""Random 64-bit words that any version of numpy gives alike, for each row or block of a seeded stream on its own."""

import numpy as np
from jaxtyping import Int64, UInt64

RandomWords = UInt64[np.ndarray, " _"]

_STREAMS = {"train": 0, "heldout": 1, "order": 2}


def random_words(seed: int, stream: str, index: int, count: int) -> RandomWords:
    """`count` words of place `index` in one of the streams of a seed (Philox4x64-10, counted by the index)."""
    bits = np.random.Philox(key=np.array([seed, _STREAMS[stream]], np.uint64), counter=index << 64)
    return bits.random_raw(count)


def random_order(seed: int, index: int, count: int) -> Int64[np.ndarray, " _"]:
    """A permutation of `count` things: the order of their random words."""
    if count == 1:
        return np.zeros(1, np.int64)
    return np.argsort(random_words(seed, "order", index, count), kind="stable")
