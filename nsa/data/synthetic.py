"""A source of known entropy that needs attention: a walk round 16 places, each of which remembers a value.

A symbol is 16·place + value. The walk goes on to the next place, or with probability 1/32 jumps to any of the 16; each
row starts anywhere. A place repeats the value it gave when the row last visited it, or with probability 1/32 (and at
the first visit) gives any of 16. So most laps are noisy copies of the lap before, and the state (the place, and the
last value of each visited place) can be read off the row: the best predictor is known, and so is the entropy.

Per target, in nats, with `place` = H(1 - e + e/16, 15 times e/16), e = 1/32, and `value` the same expression:
    H(t) = place + P(seen by t)·value + P(new at t)·ln 16,
with P(new at t) from the walk's powers that avoid one place. The entropy of rows of length S is its mean over
t = 1 … S: 0.7234 at S = 128, 0.4608 at S = 1024, place + value = 0.4232 without end. No model's expected loss is lower.
A model that reads only the last m tokens knows no value given before them: its P(new at t) is P(new at min(t, m)). With
m = 1 it stays above 2.97, with m = 15 above 2.5, whatever its size; m = 16, a lap, allows 1.11 at S = 128.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from nsa.data.batch import Row, Words
from nsa.data.random_words import random_words

NUM_PLACES = NUM_VALUES = 16
NOISE = 1 / 32  # of a jump, and of a new value
VOCAB_SIZE = NUM_PLACES * NUM_VALUES

_FOUR_BITS = np.uint64(60)  # shifted away: any of 16, evenly
_NEGLIGIBLE = 1e-18  # a share of first visits that no sum in float64 notices
_RARELY = np.uint64(2**59)  # 1/32 of all words are below


def synthetic_row(seed: int, split: str, index: int, length: int) -> Row:
    """Row `index` of a split: the same for every version, machine and number of ranks."""
    words = random_words(seed, split, index, 4 * length).reshape(4, length)
    jumps, changes = words[:2] < _RARELY
    landings, values = (words[2:] >> _FOUR_BITS).astype(np.int64)
    column = np.arange(length)
    since = np.maximum.accumulate(np.where(jumps, column, 0))
    places = (landings[since] + column - since) % NUM_PLACES
    by_place = np.argsort(places, kind="stable")
    is_given = (changes | (previous_visits(places) < 0))[by_place]
    given = np.maximum.accumulate(np.where(is_given, column, 0))  # a place's first visit is given, so none goes beyond
    tokens = np.empty(length, np.int64)
    tokens[by_place] = NUM_VALUES * places[by_place] + values[by_place][given]
    return Row(tokens, np.zeros(length, np.int32), ("synthetic",))


def previous_visits(places: Words) -> Words:
    """For each column the latest one before it with the same place; -1 where there is none."""
    by_place = np.argsort(places, kind="stable")
    is_again = np.append(False, places[by_place][1:] == places[by_place][:-1])
    previous = np.empty_like(places)
    previous[by_place] = np.where(is_again, np.append(-1, by_place[:-1]), -1)
    return previous


def entropy(seq_len: int, memory: int | None = None) -> float:
    """Mean nats per target of the best predictor, or of the best that reads the last `memory` tokens alone."""
    share_new = _shares_new(min(seq_len, memory or seq_len))
    longer = np.full(max(0, seq_len - len(share_new)), share_new[-1])
    new = float(np.concatenate([share_new, longer]).mean())
    noise = _noise_entropy()
    return noise + (1 - new) * noise + new * float(np.log(NUM_VALUES))


def oracle_loss(tokens: Int64[Tensor, "B longer"]) -> float:
    """Mean nats per target of the best predictor on these very rows."""
    return float(np.mean([_surprise(row) for row in tokens.cpu().numpy()]))


def oracle_logits(tokens: Int64[Tensor, "B longer"]) -> Tensor:
    """Its log-probabilities [B, S, 256] for each target, computed from the tokens before it alone."""
    return torch.stack([torch.from_numpy(_log_probabilities(row)) for row in tokens.cpu().numpy()])


def _surprise(row: Words) -> Float64[np.ndarray, " S"]:
    places, values = row // NUM_VALUES, row % NUM_VALUES
    previous = previous_visits(places)[1:]
    place = _log_chance(places[1:] == (places[:-1] + 1) % NUM_PLACES)
    value = np.where(previous < 0, -np.log(NUM_VALUES), _log_chance(values[1:] == values[previous]))
    return -(place + value)


def _log_probabilities(row: Words) -> Float64[np.ndarray, "S vocab"]:
    symbols = np.arange(VOCAB_SIZE)
    last: dict[int, int] = {}
    found = np.empty((len(row) - 1, VOCAB_SIZE))
    for column, symbol in enumerate(row[:-1]):
        last[int(symbol) // NUM_VALUES] = int(symbol) % NUM_VALUES
        remembered = np.array([last.get(place, -1) for place in range(NUM_PLACES)])[symbols // NUM_VALUES]
        place = _log_chance(symbols // NUM_VALUES == (symbol // NUM_VALUES + 1) % NUM_PLACES)
        value = np.where(remembered < 0, -np.log(NUM_VALUES), _log_chance(symbols % NUM_VALUES == remembered))
        found[column] = place + value
    return found


def _log_chance(is_expected: Bool[np.ndarray, " N"]) -> Float64[np.ndarray, " N"]:
    return np.log(np.where(is_expected, 1 - NOISE, 0.0) + NOISE / NUM_PLACES)


def _noise_entropy() -> float:
    """Of 1 of 16 that is expected, and any of the 16 with probability NOISE."""
    chances = np.full(NUM_PLACES, NOISE / NUM_PLACES)
    chances[0] += 1 - NOISE
    return float(-(chances * np.log(chances)).sum())


def _shares_new(steps: int) -> Float64[np.ndarray, " steps"]:
    """P(the place at t was not visited before), t = 1 … steps, for a walk that starts anywhere."""
    walk = (1 - NOISE) * np.roll(np.eye(NUM_PLACES), 1, axis=1) + NOISE / NUM_PLACES
    elsewhere = np.full(NUM_PLACES - 1, 1 / NUM_PLACES)  # at the places but 0, place 0 not yet visited
    found = np.zeros(steps)
    for step in range(steps):
        found[step] = NUM_PLACES * (elsewhere @ walk[1:, 0])  # all places are alike
        elsewhere = elsewhere @ walk[1:, 1:]
        if found[step] < _NEGLIGIBLE:
            break
    return found
