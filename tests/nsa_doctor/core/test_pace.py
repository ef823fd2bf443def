"""How much of a slow subject is looked at: a shorter length, fewer of them, and checks until the time is over."""

import pytest

from nsa_doctor.core.pace import Pace, left_out_of_all, seconds_of_all

SLOW = ((16, 0.1), (32, 0.2), (64, 0.4), (128, 0.8))


@pytest.mark.parametrize(
    "calls", [(), ((16, 0.001), (2048, 0.4)), ((128, 0.3),)], ids=["nothing known", "fast", "no short one is known"]
)
def test_what_is_not_slow_has_no_pace(calls: tuple[tuple[int, float], ...]) -> None:
    assert Pace.of(calls, "quick") is None


@pytest.mark.parametrize("calls", [((16, 0.2),), ((16, 0.05), (64, 0.2))])
def test_short_calls_are_slow_long_before_long_ones_are(calls: tuple[tuple[int, float], ...]) -> None:
    assert Pace.of(calls, "quick") is not None


def test_a_loop_over_tokens_gets_few_calls_too_and_time_enough_for_most_checks() -> None:
    loop, slow = Pace.of(((16, 0.015), (64, 0.06), (256, 0.24)), "quick"), Pace.of(SLOW, "quick")
    assert loop is not None
    assert slow is not None
    assert (loop.length, loop.short_seconds) == (256, 0.06)
    assert loop.seconds > 2 * slow.seconds
    assert loop.num_lengths == 5
    assert Pace.of(((16, 0.01), (64, 0.04), (256, 0.16)), "quick") is None


def test_the_full_profile_takes_the_time_it_needs() -> None:
    assert Pace.of(SLOW, "full") is None
    assert Pace.of(SLOW, "quick") is not None
    assert seconds_of_all("quick") < float("inf") == seconds_of_all("full")


def test_why_a_check_did_not_begin_says_what_to_do() -> None:
    assert left_out_of_all("quick").startswith("left out: the 300 s of the profile quick were over; --profile full")


@pytest.mark.parametrize(
    ("calls", "length"),
    [
        (SLOW, 32),
        (((16, 3.0), (32, 6.0)), 16),
        (((16, 3.0), (32, 3.1), (64, 4.0), (128, 9.0)), 64),
    ],
    ids=["the longest of a quarter of a second", "the shortest", "a longer one that costs as much"],
)
def test_the_length_is_the_longest_that_leaves_time_for_many_calls(
    calls: tuple[tuple[int, float], ...], length: int
) -> None:
    pace = Pace.of(calls, "quick")
    assert pace is not None
    assert pace.length == length


def test_the_slower_the_calls_the_fewer_lengths_are_swept_but_never_none() -> None:
    paces = [Pace.of(((16, seconds),), "quick") for seconds in (0.6, 2.0, 30.0)]
    assert [pace.num_lengths for pace in paces if pace is not None] == [5, 2, 1]


def test_short_calls_leave_time_for_unusual_values_though_long_ones_are_slow() -> None:
    paces = [Pace.of(((64, seconds), (2048, 0.6)), "quick") for seconds in (0.01, 0.4, 1.0)]
    assert [min(pace.num_for_values, 2) for pace in paces if pace is not None] == [2, 2, 0]


def test_no_check_takes_all_that_is_left_and_none_begins_at_the_end() -> None:
    pace = Pace.of(SLOW, "smoke")
    assert pace is not None
    assert 0 < pace.seconds_left(0.0) < pace.seconds / 2
    assert pace.seconds_left(10.0) < pace.seconds_left(0.0)
    assert pace.seconds_left(pace.seconds - 5.0) == 0.0


def test_a_telling_check_gets_most_of_what_is_left() -> None:
    pace = Pace.of(SLOW, "quick")
    assert pace is not None
    assert pace.seconds_left(10.0) < pace.seconds / 2 < pace.seconds_left(10.0, is_telling=True) < pace.seconds
