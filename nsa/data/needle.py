"""Key-value recall: needles at random depths of a haystack, and questions about them.

Symbols: 0 … 31 the haystack, which counts up and starts again; 32 + key a question; 64 + 8·key + value a needle, which
is also the answer that follows its question. 16 keys, 8 values; each key has one needle and one question in a row.

A row of the held-out split hides all its needles at even random depths, then, 64 tokens after the last place where one
may lie, asks for all of them: a model with a window of 64 can answer only through what it has compressed or selected.
A row of the train split asks at all distances, as many between 2 and 4 tokens as between 1024 and 2048: near answers
teach what to look for, far ones where to look. A guess among the values is right in 1 of 8.
"""

import numpy as np

from nsa.data.batch import Question, Row
from nsa.data.random_words import RandomWords, random_words

NUM_KEYS, NUM_VALUES, NUM_STRAWS = 16, 8, 32
NEEDLE_VOCAB_SIZE = 64 + NUM_KEYS * NUM_VALUES
GUARD = 64  # tokens between the last needle of a held-out row and its first question
SHORTEST_NEEDLE_ROW = 2 * (2 * NUM_KEYS + GUARD)

_QUESTION, _NEEDLE = 32, 64
_ATTEMPTS = 8  # at a free place for a needle and its question


def needle_row(seed: int, split: str, index: int, length: int) -> Row:
    """Row `index` of a split: the same for every version, machine and number of ranks."""
    words = random_words(seed, split, index, NUM_KEYS * (2 + 3 * _ATTEMPTS) + length)
    values = (words[:NUM_KEYS] % NUM_VALUES).astype(np.int64)
    keys = np.argsort(words[NUM_KEYS : 2 * NUM_KEYS], kind="stable")
    rest = words[2 * NUM_KEYS :]
    places = _asked_at_the_end(rest, length) if split == "heldout" else _asked_anywhere(rest, length)
    tokens = np.arange(length) % NUM_STRAWS
    questions = []
    for key, (needle, question) in zip(keys, places, strict=False):  # the shortest rows may have no place for all
        tokens[[needle, question + 1]] = _NEEDLE + NUM_VALUES * key + values[key]
        tokens[question] = _QUESTION + key
        questions.append(Question(question, needle / question, question - needle))
    questions.sort(key=lambda asked: asked.column)
    return Row(tokens, np.zeros(length, np.int32), ("needle",), questions=tuple(questions))


def _asked_at_the_end(words: RandomWords, length: int) -> list[tuple[int, int]]:
    first = length - 2 * NUM_KEYS
    hidden = np.argsort(words[: first - GUARD], kind="stable")[:NUM_KEYS]
    return [(int(needle), first + 2 * turn) for turn, needle in enumerate(hidden)]


def _asked_anywhere(words: RandomWords, length: int) -> list[tuple[int, int]]:
    num_octaves = (length - 2).bit_length() - 1
    is_free = np.ones(length, bool)
    places = []
    for key in range(NUM_KEYS):
        draws = [int(word) for word in words[3 * _ATTEMPTS * key : 3 * _ATTEMPTS * (key + 1)]]
        for octave, far, where in zip(draws[::3], draws[1::3], draws[2::3], strict=True):
            distance = (1 << (1 + octave % num_octaves)) | (far % (1 << (1 + octave % num_octaves)))
            if distance > length - 2:
                continue
            needle = where % (length - 1 - distance)
            taken = [needle, needle + distance, needle + distance + 1]
            if is_free[taken].all():
                is_free[taken] = False
                places.append((needle, needle + distance))
                break
    return places
