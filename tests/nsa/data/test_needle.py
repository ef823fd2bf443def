"""The needle source: its questions have one answer each, at the depths it says, and out of a window's sight."""

import pytest
import torch

from nsa.data import Batch, DataError, open_loader
from nsa.data.needle import GUARD, NUM_KEYS, NUM_VALUES, needle_row
from tests.nsa.data.configured import configured

LENGTHS = [192, 512, 2048]
ASKED_OFTEN = [index for index in range(400) if index % 4]


def batch(split: str, seq_len: int) -> Batch:
    with open_loader(configured("needle", seq_len=seq_len, rows=24), split=split) as loader:
        return next(loader)


@pytest.mark.parametrize("seq_len", LENGTHS)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_answer_is_the_only_value_that_the_row_has_for_the_asked_key(split: str, seq_len: int) -> None:
    found = batch(split, seq_len)
    assert found.answers is not None
    for row, tokens in enumerate(found.tokens.tolist()):
        for column, distance in zip(
            found.answers.columns[row].tolist(), found.answers.distances[row].tolist(), strict=True
        ):
            if column < 0:
                continue
            key, answer = tokens[column] - 32, tokens[column + 1]
            assert (answer - 64) // NUM_VALUES == key
            columns = [
                place
                for place, token in enumerate(tokens[: column + 1])
                if token >= 64 and (token - 64) // NUM_VALUES == key
            ]
            assert {tokens[place] for place in columns} == {answer}
            assert columns[-1] == column - distance


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_answers_alone_are_predicted(split: str) -> None:
    found = batch(split, 512)
    assert found.answers is not None
    is_predicted = found.documents[:, 1:] == found.documents[:, :-1]
    for row, columns in enumerate(found.answers.columns):
        assert is_predicted[row].nonzero().flatten().tolist() == columns[columns >= 0].tolist()


@pytest.mark.parametrize("seq_len", LENGTHS)
def test_a_window_sees_no_needle_of_a_held_out_row(seq_len: int) -> None:
    answers = batch("heldout", seq_len).answers
    assert answers is not None
    assert answers.columns.shape == (24, NUM_KEYS)
    assert int(answers.distances.min()) > GUARD
    assert int(answers.columns.max()) == seq_len - 1


def test_held_out_needles_lie_at_all_depths_evenly() -> None:
    depths = torch.tensor(
        [asked.depth for index in range(300) for asked in needle_row(1, "heldout", index, 2049).questions]
    )
    shares = torch.histc(depths, bins=5, min=0, max=0.96) / len(depths)
    assert (shares - 0.2).abs().max() < 0.03


def test_train_rows_ask_at_near_and_far_distances_alike() -> None:
    distances = torch.tensor(
        [asked.distance for index in ASKED_OFTEN for asked in needle_row(1, "train", index, 2049).questions]
    )
    octaves = torch.bincount(distances.double().log2().long(), minlength=11)[1:]
    assert int(distances.min()) == 2
    assert octaves[:6].min() > 0.6 * octaves[:6].max(), "2 to 127 tokens"
    assert (octaves[1:] < 1.1 * octaves[:-1]).all(), "further on, the row ends before a question"
    assert octaves.min() > 300, "the furthest is asked in every row or so"


def test_a_train_row_asks_for_most_needles_often() -> None:
    assert all(len(needle_row(1, "train", index, 513).questions) > 5 * NUM_KEYS for index in ASKED_OFTEN)


def test_every_fourth_train_row_asks_as_held_out_rows_do() -> None:
    for index in range(0, 40, 4):
        columns = [asked.column for asked in needle_row(1, "train", index, 513).questions]
        assert columns == list(range(513 - 2 * NUM_KEYS, 513, 2))


def test_values_and_asked_keys_come_evenly() -> None:
    answers = torch.tensor(
        [
            row.tokens[asked.column + 1] - 64
            for index in range(300)
            for row in [needle_row(1, "heldout", index, 513)]
            for asked in row.questions
        ]
    )
    counts = torch.bincount(answers, minlength=NUM_KEYS * NUM_VALUES)
    assert counts.min() > 0.4 * counts.double().mean()


def test_what_is_no_needle_or_question_counts_up() -> None:
    tokens = torch.from_numpy(needle_row(1, "train", 1, 513).tokens)
    is_straw = tokens < 32
    assert torch.equal(tokens[is_straw], (torch.arange(513) % 32)[is_straw])
    assert int((~is_straw).sum()) == NUM_KEYS + 2 * len(needle_row(1, "train", 1, 513).questions)


def test_a_row_too_short_for_its_questions_is_refused() -> None:
    with pytest.raises(DataError, match=r"train\.seq_len must be at least 192 for needle, got 191"):
        open_loader(configured("needle", seq_len=191))
