"""Lengths: as people write them, and where block code breaks."""

import pytest

from nsa.ops.geometry import Geometry
from nsa_doctor.core.lengths import boundary_lengths, nearest, parse_lengths, spread_lengths

GEOMETRY = Geometry(l=8, d=4, l_sel=16, n_sel=4, w=24)


def test_lengths_keep_their_order_and_lose_repeats() -> None:
    assert parse_lengths("512, 128,512") == [512, 128]


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "12a", "1,,2", "²", "9" * 30, "99999999", "1 2"])
def test_what_is_no_length_is_refused_with_the_word_seen(text: str) -> None:
    with pytest.raises(ValueError, match="lengths must be whole numbers from 1 to 16777216 separated by commas, got "):
        parse_lengths(text)


def test_boundaries_hold_every_change_and_its_neighbours() -> None:
    lengths = boundary_lengths(GEOMETRY, 80)
    for change in GEOMETRY.change_lengths(80):
        assert {max(1, change - 1), change, change + 1} <= set(lengths)
    assert lengths == sorted(set(lengths))
    assert lengths[-1] <= 81


def test_without_a_geometry_the_usual_block_sizes_serve() -> None:
    lengths = boundary_lengths(None, 600)
    assert {1, 2, 3, 63, 64, 65, 127, 128, 129, 191, 192, 511, 512, 513, 5, 17, 257} <= set(lengths)
    assert max(lengths) <= 601


def test_a_spread_is_small_and_holds_both_ends_and_the_powers_of_two() -> None:
    lengths = spread_lengths(GEOMETRY, 80, 16)
    assert len(lengths) <= 16
    assert {1, 2, 4, 8, 16, 32, 64, 80} <= set(lengths)


def test_the_nearest_lengths_lie_on_both_sides() -> None:
    assert nearest(512, [128, 256, 512, 513, 1024]) == [256, 513]
    assert nearest(1, [1]) == []
