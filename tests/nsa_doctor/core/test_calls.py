"""Calls are seen in a region, and whoever saw them before sees them again after it."""

import sys

import pytest

from nsa_doctor.core.calls import calls_seen_by


def called() -> str:
    return "an answer"


def divided(text: str) -> float:
    return len(text) / 0


def test_calls_are_seen_as_they_begin_and_return() -> None:
    seen: list[tuple[str, object]] = []
    with calls_seen_by(
        lambda frame, event, given: seen.append((event, given)) if frame.f_code is called.__code__ else 0
    ):
        called()
    called()
    assert seen == [("call", None), ("return", "an answer")]


def test_who_saw_them_before_sees_them_again() -> None:
    outer: list[str] = []
    with calls_seen_by(lambda frame, event, given: outer.append(event) if frame.f_code is called.__code__ else 0):
        before = sys.getprofile()
        with pytest.raises(ZeroDivisionError), calls_seen_by(lambda *_: None):
            divided(called())
        assert sys.getprofile() is before
        called()
    assert outer == ["call", "return"]
    assert sys.getprofile() is not before
