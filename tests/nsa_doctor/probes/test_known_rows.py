"""Rows of one tensor are found again in another whatever the layout, and only where they are of their own token."""

import torch

from nsa_doctor.probes.tensors.known_rows import Asked, KnownRows


def _learnt(*shape: int) -> tuple[KnownRows, torch.Tensor]:
    tensor = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    known = KnownRows(length=7)
    known.learn(tensor, "mul")
    return known, tensor


def test_a_row_is_known_in_another_layout() -> None:
    known, tensor = _learnt(2, 7, 3, 5)
    assert known.unknown(tensor[:, 4].flatten(0, 1), Asked("mul", 4, 1)) is None


def test_a_row_that_is_none_of_those_is_unknown() -> None:
    known, tensor = _learnt(2, 7, 5)
    part = tensor[:, 4:5].clone()
    part[1] += 1e-3
    numbers = known.unknown(part, Asked("mul", 4, 1))
    assert numbers is not None
    assert numbers.tolist() == [1]


def test_the_row_of_another_token_is_unknown() -> None:
    known, tensor = _learnt(2, 7, 5)
    assert known.unknown(tensor[:, 3:4], Asked("mul", 4, 1)) is not None


def test_a_row_that_is_followed_by_hidden_ones_is_known() -> None:
    known = KnownRows(length=7)
    scores = torch.randn((7, 7), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    known.learn(scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf), "mul")
    assert known.unknown(scores[4:5, :5], Asked("mul", 4, 1)) is None


def test_a_row_that_begins_a_longer_one_is_known() -> None:
    known = KnownRows(length=7)
    scores = torch.randn((7, 7), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    known.learn(scores, "mul")
    assert known.unknown(scores[4:5, :5], Asked("mul", 4, 1)) is None
    assert known.unknown(scores[4:5, :5] + 1e-3, Asked("mul", 4, 1)) is not None


def test_rows_in_another_order_are_unknown_where_the_same_shape_is_known() -> None:
    known, tensor = _learnt(2, 7, 3, 5)
    part = tensor[:, 4:5].flip(2)
    assert known.unknown(part, Asked("mul", 4, 1)) is not None
    assert known.unknown(part.flatten(0, 1), Asked("mul", 4, 1)) is None


def test_a_row_of_another_operation_is_unknown_where_the_same_operation_gave_that_shape() -> None:
    known, tensor = _learnt(2, 7, 5)
    known.learn(2 * tensor, "cat")
    assert known.unknown(tensor[:, 4:5], Asked("cat", 4, 1)) is not None
    assert known.unknown(tensor[:, 4:5], Asked("add", 4, 1)) is None
