"""What is left behind with every step is found by new content and changing lengths; what is bounded is left alone."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.cost import step_costs
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked

Examine = Callable[[str, str], Result]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Examine:
    """`examined("PRF301", "by_content")` is the result of that check on that module of `faulty.kept`."""
    monkeypatch.syspath_prepend(HERE)

    def examine(code: str, name: str) -> Result:
        subject = load_subject(SubjectRequest(spec=f"faulty.kept:{name}", lengths=(16,)))
        return run_check(registry.load(code), replace(subject, profile="smoke"))

    return examine


@pytest.fixture(params=["few", pytest.param("all", marks=pytest.mark.full)])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What never drops anything has the same end after fewer further steps: every step copies all that is kept."""
    if request.param == "few":
        monkeypatch.setattr(step_costs, "_FURTHER", (32, 64))


@pytest.mark.parametrize(
    "name", ["by_content", "by_every_change", pytest.param("never_trimmed", marks=pytest.mark.full)]
)
@pytest.mark.usefixtures("steps")
def test_what_new_content_or_new_lengths_leave_behind_is_found(name: str, examined: Examine) -> None:
    (finding,) = examined("PRF301", name).findings
    assert is_marked(finding.where.file, finding.where.line), finding.where
    assert finding.where.module == "part"


def test_a_history_without_bounds_costs_memory_and_time(examined: Examine) -> None:
    found = [examined(code, "history").findings[0] for code in ("PRF301", "PRF302")]
    assert [finding.where.module for finding in found] == ["part", "part"]


BOUNDED = ("by_content_of_late", "by_length", "long_history", "longer_history", "trimmed", "cached", "last_chosen")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] * (name in ("long_history", "trimmed", "longer_history")))
        for name in BOUNDED
    ],
)
def test_what_is_kept_within_bounds_that_are_far_away_is_left_alone(name: str, examined: Examine) -> None:
    results = [examined(code, name) for code in ("PRF301", "PRF302")]
    assert [(result.verdict, result.notes) for result in results] == [(Verdict.PASS, ())] * 2


@pytest.mark.usefixtures("steps")
def test_a_bound_that_was_not_reached_is_a_note(examined: Examine) -> None:
    result = examined("PRF301", "trimmed_far_away")
    assert result.verdict is Verdict.PASS
    assert "its code takes out of it past some number" in result.notes[0]
