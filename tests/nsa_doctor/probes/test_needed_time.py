"""The time a call needs: what it computes and what it waits for, without its waits for a processor."""

import time
from pathlib import Path

import pytest

from nsa_doctor.probes.model import needed_time
from nsa_doctor.probes.model.needed_time import needed_seconds

SECONDS = 0.2


def wait() -> None:
    time.sleep(SECONDS)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds for which the system says, one look after another, that this thread has waited for a processor."""
    said: list[float] = []
    monkeypatch.setattr(needed_time, "_waited", lambda: said.pop(0))
    return said


def test_a_wait_for_something_else_is_needed(waited: list[float]) -> None:
    waited += [5.0, 5.0]
    assert needed_seconds(wait) >= SECONDS


def test_a_wait_for_a_processor_is_not(waited: list[float]) -> None:
    waited += [5.0, 5.0 + SECONDS]
    assert needed_seconds(wait) < SECONDS


def test_where_the_system_does_not_say_it_is_what_the_thread_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needed_time, "_SCHEDULED", tmp_path / "none")
    assert needed_seconds(wait) < SECONDS


def test_what_the_call_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        needed_seconds(lambda: 1 / 0)
