"""Packing loses nothing, adds nothing, and never makes a row of another length."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.data.batch import Row
from nsa.data.documents import Document, Shard
from nsa.data.errors import DataError
from nsa.data.order import Order
from nsa.data.packing import RowPosition, packed_rows
from nsa.data.progress import Progress

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)
ROW_LENGTHS = st.integers(2, 24)


def order_of(lengths: list[int], num_shards: int = 1, block_size: int = 1) -> Order:
    """Documents whose text is their number, dealt to shards in turn; a number says which tokens they have."""
    numbers = list(range(len(lengths)))
    shards = tuple(
        Shard(
            f"shard {index}",
            lambda start, mine=numbers[index::num_shards]: [{"text": str(number)} for number in mine][start:],
            lambda example, _: example["text"],
            "row",
        )
        for index in range(num_shards)
    )
    return Order("numbers", shards, False, 2**31 - 1, block_size, seed=1, progress=Progress())


def packed(
    lengths: list[int], row_length: int, start: RowPosition | None = None, num_shards: int = 1, block_size: int = 1
) -> Iterator[tuple[Row, RowPosition]]:
    def encode(documents: list[Document]) -> list[np.ndarray]:
        return [1000 * number + np.arange(lengths[number]) for number in (int(each.text) for each in documents)]

    order = order_of(lengths, num_shards, block_size)
    return packed_rows(order, encode, row_length, start or RowPosition(), order.progress)


def transitions(rows: list[Row]) -> list[tuple[int, int]]:
    """What the rows ask to predict: (token, the one after it), in order."""
    return [
        (int(row.tokens[column]), int(row.tokens[column + 1]))
        for row in rows
        for column in range(len(row.tokens) - 1)
        if row.documents[column] == row.documents[column + 1]
    ]


@given(LENGTHS, ROW_LENGTHS)
def test_rows_are_never_longer_or_shorter(lengths: list[int], row_length: int) -> None:
    for row, _ in islice(packed(lengths, row_length), 20):
        assert row.tokens.shape == row.documents.shape == (row_length,)


@given(LENGTHS, ROW_LENGTHS)
def test_each_token_but_a_documents_first_is_predicted_once_each_epoch(lengths: list[int], row_length: int) -> None:
    wanted = [
        (1000 * number + at, 1000 * number + at + 1)
        for number, length in enumerate(lengths)
        for at in range(length - 1)
    ]
    rows = [row for row, _ in islice(packed(lengths, row_length), 2 + 2 * sum(lengths) // (row_length - 1))]
    found = transitions(rows)
    for epoch in range(len(found) // max(1, len(wanted)) if wanted else 0):
        assert found[epoch * len(wanted) : (epoch + 1) * len(wanted)] == wanted
    assert wanted == [] or len(found) >= len(wanted)


@given(LENGTHS, ROW_LENGTHS)
def test_no_token_is_lost(lengths: list[int], row_length: int) -> None:
    rows = [row for row, _ in islice(packed(lengths, row_length), 2 + 2 * sum(lengths) // (row_length - 1))]
    given_tokens = {int(token) for row in rows for token in row.tokens}
    assert given_tokens == {1000 * number + at for number, length in enumerate(lengths) for at in range(length)}


@given(LENGTHS, ROW_LENGTHS)
def test_documents_change_where_the_texts_do(lengths: list[int], row_length: int) -> None:
    for row, _ in islice(packed(lengths, row_length), 20):
        assert row.documents[0] == 0
        steps = np.diff(row.documents)
        goes_on = np.diff(row.tokens) == 1
        assert set(steps.tolist()) <= {0, 1}
        assert np.array_equal(steps == 0, goes_on)


@settings(max_examples=25)
@given(LENGTHS, ROW_LENGTHS, st.integers(1, 3), st.integers(1, 5))
def test_each_position_gives_the_rows_after_it(
    lengths: list[int], row_length: int, num_shards: int, block_size: int
) -> None:
    num_shards = min(num_shards, len(lengths))
    whole = list(islice(packed(lengths, row_length, None, num_shards, block_size), 9))
    for at, (_, position) in enumerate(whole[:-1]):
        row, after = next(packed(lengths, row_length, position, num_shards, block_size))
        assert np.array_equal(row.tokens, whole[at + 1][0].tokens)
        assert np.array_equal(row.documents, whole[at + 1][0].documents)
        assert (row.epoch, row.sources, after) == (whole[at + 1][0].epoch, whole[at + 1][0].sources, whole[at + 1][1])


def test_a_row_names_the_shards_it_holds() -> None:
    row, _ = next(packed([3, 3, 3], 8, num_shards=3))
    assert row.sources == ("shard 0", "shard 1", "shard 2")


def test_documents_without_a_token_end_the_run_with_a_sentence() -> None:
    with pytest.raises(DataError, match="numbers: the tokenizer makes no token of any document"):
        next(packed([0, 0], 4))


def test_a_document_shorter_than_where_the_run_stood_is_other_data() -> None:
    with pytest.raises(DataError, match=r"shard 0, row 1: has 5 tokens, and the run stood at token 9 of it"):
        next(packed([5], 4, RowPosition(offset=9)))
