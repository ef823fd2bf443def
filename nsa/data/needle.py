"""Key-value recall: needles at random depths of a haystack, and questions about them.

Symbols: 0 … 31 the haystack, which counts up and starts again; 32 + key a question; 64 + 8·key + value a needle, which
is also the answer that follows its question. 16 keys, 8 values; each key has one needle in a row.

A row of the held-out split hides all its needles at even random depths, then, 64 tokens after the last place where one
may lie, asks for each of them once: a model with a window of 64 can answer only through what it has compressed or
selected. So does every fourth row of the train split. The others hide their needles in the first half and ask for each
again and again, as often as the row has room: the distance from where the answer last stood is drawn evenly among
octaves, 2 to 4 tokens as likely as 1024 to 2048. Near answers teach what to look for, far ones where to look.

Answers alone are predicted: every other token counts as the first of a document, for what stands next in a haystack
has nothing to do with recall. A guess among the values is right in 1 of 8.
"""

import numpy as np

from nsa.data.batch import Question, Row
from nsa.data.random_words import RandomWords, random_words

NUM_KEYS, NUM_VALUES, NUM_STRAWS = 16, 8, 32
NEEDLE_VOCAB_SIZE = 64 + NUM_KEYS * NUM_VALUES
GUARD = 64  # tokens between the last needle of a held-out row and its first question
SHORTEST_NEEDLE_ROW = 2 * (2 * NUM_KEYS + GUARD)

_QUESTION, _NEEDLE = 32, 64
_ASKED_AT_THE_END_EVERY = 4  # rows of the train split
_DRAWS = 64  # of a distance to the next question about a needle


def needle_row(seed: int, split: str, index: int, length: int) -> Row:
    """Row `index` of a split: the same for every version, machine and number of ranks."""
    words = random_words(seed, split, index, NUM_KEYS * (2 + 2 * _DRAWS) + length)
    values = (words[:NUM_KEYS] % NUM_VALUES).astype(np.int64)
    keys = np.argsort(words[NUM_KEYS : 2 * NUM_KEYS], kind="stable")
    rest = words[2 * NUM_KEYS :]
    is_asked_at_the_end = split == "heldout" or index % _ASKED_AT_THE_END_EVERY == 0
    places = _asked_at_the_end(rest, length) if is_asked_at_the_end else _asked_down_the_row(rest, length)
    tokens = np.arange(length) % NUM_STRAWS
    questions = []
    for key, (needle, *asked) in zip(keys, places, strict=True):
        tokens[needle] = _NEEDLE + NUM_VALUES * key + values[key]
        seen = needle
        for question in asked:
            tokens[question : question + 2] = _QUESTION + key, tokens[needle]
            questions.append(Question(question, needle / question, question - seen))
            seen = question + 1
    questions.sort(key=lambda asked: asked.column)
    begins = np.ones(length, np.int32)
    begins[[asked.column + 1 for asked in questions]] = 0
    return Row(tokens, np.cumsum(begins, dtype=np.int32), ("needle",), questions=tuple(questions))


def _asked_at_the_end(words: RandomWords, length: int) -> list[list[int]]:
    """Places of a needle and its question, for each key."""
    first = length - 2 * NUM_KEYS
    needles = np.argsort(words[: first - GUARD], kind="stable")[:NUM_KEYS]
    return [[int(needle), first + 2 * turn] for turn, needle in enumerate(needles)]


def _asked_down_the_row(words: RandomWords, length: int) -> list[list[int]]:
    """Places of a needle and its questions, for each key."""
    half, num_octaves = length // 2, (length - 2).bit_length() - 1
    needles = np.argsort(words[:half], kind="stable")[:NUM_KEYS]
    draws = words[half:][: NUM_KEYS * _DRAWS * 2].reshape(NUM_KEYS, _DRAWS, 2)
    is_free = np.ones(length, bool)
    is_free[needles] = False
    places = []
    for needle, drawn in zip(needles.tolist(), draws.tolist(), strict=True):
        asked, seen = [needle], needle
        for octave, far in drawn:
            least = 2 << octave % num_octaves
            question = seen + least + far % least
            if question + 1 < length and is_free[question : question + 2].all():
                is_free[question : question + 2] = False
                asked.append(question)
                seen = question + 1
        places.append(asked)
    return places
