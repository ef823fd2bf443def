"""Seconds that may be spent in all: what a block takes is taken off, and no block may take more than is left."""

import time
from contextlib import suppress

import pytest

from nsa_doctor.core.allowance import Allowance


def test_what_a_block_takes_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 103.0, 200.0, 250.0, 300.0, 300.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    allowance = Allowance(5.0)
    with allowance.spending(4.0) as until:
        assert until == 104.0
    assert allowance.seconds == 2.0
    with suppress(ValueError), allowance.spending(4.0) as until:
        assert until == 202.0
        raise ValueError
    with allowance.spending(4.0) as until:
        assert until == 300.0


def test_without_a_limit_of_all_each_block_has_its_own() -> None:
    allowance = Allowance()
    with allowance.spending(4.0) as until:
        assert time.monotonic() < until <= time.monotonic() + 4.0
    assert allowance.seconds == float("inf")
