"""The synthetic source has the entropy it says, and needs attention as far back as it says."""

import hashlib
import math

import numpy as np
import pytest
import torch

from nsa.data import open_loader
from nsa.data.synthetic import (
    NUM_PLACES,
    NUM_VALUES,
    entropy,
    oracle_logits,
    oracle_loss,
    previous_visits,
    synthetic_row,
)
from tests.nsa.data.configured import configured


def rows(count: int, length: int, split: str = "train", seed: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.stack([synthetic_row(seed, split, index, length).tokens for index in range(count)]))


@pytest.mark.parametrize("seq_len", [1, 15, 16, 17, 128, 1024])
def test_the_best_predictors_loss_is_the_entropy(seq_len: int) -> None:
    found = rows(max(40, min(3000, 60_000 // seq_len)), seq_len + 1)
    losses = np.array([oracle_loss(row[None]) for row in found])
    assert abs(losses.mean() - entropy(seq_len)) < 5 * losses.std() / math.sqrt(len(losses))


def test_the_best_predictor_gives_probabilities() -> None:
    torch.testing.assert_close(oracle_logits(rows(3, 40)).exp().sum(-1), torch.ones(3, 39, dtype=torch.float64))


def test_the_best_predictors_probabilities_are_those_its_loss_is_made_of() -> None:
    found = rows(5, 129)
    logits = oracle_logits(found)
    assert oracle_loss(found) == pytest.approx(-float(logits.gather(-1, found[:, 1:, None]).mean()), rel=1e-12)


def test_the_best_predictor_reads_nothing_ahead() -> None:
    found = rows(1, 65)
    changed = found.clone()
    changed[:, 40:] = (changed[:, 40:] + 77) % 256
    assert torch.equal(oracle_logits(found)[:, :40], oracle_logits(changed)[:, :40])


@pytest.mark.parametrize("memory", [1, 8, 15, 16, 24, 64])
def test_a_short_memory_cannot_reach_the_entropy(memory: int) -> None:
    """The loss of the best predictor that forgets is measured: it knows a value only if it was given among the last."""
    found = rows(500, 129).numpy()
    places, values = found // NUM_VALUES, found % NUM_VALUES
    total = 0.0
    for row in range(len(found)):
        previous = previous_visits(places[row])
        age = np.arange(129) - previous
        knows = ((previous >= 0) & (age <= memory))[1:]
        right = (values[row] == values[row][np.maximum(previous, 0)])[1:]
        on = places[row][1:] == (places[row][:-1] + 1) % NUM_PLACES
        chance = np.where(knows, np.where(right, 31 / 32, 0) + 1 / 512, 1 / 16) * (np.where(on, 31 / 32, 0) + 1 / 512)
        total -= np.log(chance).mean()
    assert total / len(found) == pytest.approx(entropy(128, memory), abs=0.03)


def test_what_the_documentation_says_of_a_short_memory() -> None:
    assert entropy(128) == pytest.approx(0.7234, abs=1e-4)
    assert entropy(1024) == pytest.approx(0.4608, abs=1e-4)
    assert entropy(128, 1) > 2.97
    assert entropy(128, 15) > 2.5
    assert entropy(128, 16) == pytest.approx(1.106, abs=1e-3)


def test_the_entropy_of_endless_rows_is_that_of_the_noise() -> None:
    noise = -(31 / 32 + 1 / 512) * math.log(31 / 32 + 1 / 512) - 15 / 512 * math.log(1 / 512)
    assert entropy(10**7) == pytest.approx(2 * noise, abs=1e-5)


def test_all_256_symbols_come_evenly() -> None:
    counts = torch.bincount(rows(400, 129).flatten(), minlength=256)
    assert counts.min() > 0.5 * counts.double().mean()
    assert counts.max() < 2 * counts.double().mean()


def test_a_row_is_the_same_wherever_it_is_made() -> None:
    """Of any numpy, on any machine: its words and the arithmetic on them are those of integers."""
    tokens = np.concatenate(
        [synthetic_row(1337, split, index, 129).tokens for split in ("train", "heldout") for index in (0, 9)]
    )
    assert hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()[:16] == "73220bd60e3dea25"


def test_splits_and_seeds_give_other_rows() -> None:
    one, split, seed = rows(1, 129), rows(1, 129, "heldout"), rows(1, 129, seed=4)
    assert (one != split).float().mean() > 0.9
    assert (one != seed).float().mean() > 0.9


def test_the_loader_says_the_entropy() -> None:
    with open_loader(configured("synthetic", seq_len=128), split="heldout") as loader:
        assert loader.entropy == entropy(128)
        batch = next(loader)
        assert loader.oracle_loss(batch.tokens) == oracle_loss(batch.tokens)
        assert not batch.documents.any()
