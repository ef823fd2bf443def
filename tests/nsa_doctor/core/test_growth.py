"""Lengths are measured until the next would cost too much; the third, without which nothing is known, may cost more."""

from dataclasses import dataclass

from nsa_doctor.core.growth import doubling, ladder


@dataclass(frozen=True)
class Counted:
    """So many operations at a length, as within a first chunk of 16 tokens and behind it."""

    length: int

    @property
    def operations(self) -> int:
        return min(self.length, 16) ** 3 * max(1, self.length // 16)


def lengths_within(limit: int) -> list[int]:
    found = ladder(doubling(512, 7), Counted, lambda each: [(each.operations, limit)])
    return [each.length for each in found]


def test_three_lengths_are_measured_though_the_first_chunk_grows_fast() -> None:
    assert lengths_within(9_000) == [8, 16, 32]
    assert lengths_within(40_000) == [8, 16, 32, 64, 128]


def test_no_third_is_measured_that_is_far_beyond_the_limit() -> None:
    assert lengths_within(5_000) == [8, 16]
