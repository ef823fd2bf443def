"""A gradient that stops at a state detached at intervals is a note where that is meant, and a finding else."""

import pytest

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.checks._shared.gradient import distinct_texts
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch):
    """`examined("in_chunks")` is the result of GRD101 on that module of `faulty.truncated`."""
    monkeypatch.syspath_prepend(HERE)

    def examine(name: str) -> Result:
        return run_check(
            registry.load("GRD101"), load_subject(SubjectRequest(spec=f"faulty.truncated:{name}", lengths=(16,)))
        )

    return examine


@pytest.mark.parametrize("name", ["documented", "in_long_chunks", "in_place", "by_index", "memory"])
def test_a_state_detached_at_intervals_is_a_note_where_the_source_says_it_is_meant(name: str, examined) -> None:
    result = examined(name)
    assert result.verdict is Verdict.PASS
    assert "right but for a state detached" in result.notes[0]


@pytest.mark.parametrize("name", ["in_chunks", "once", "wrong_within", "every_token", "keys_of_chunks"])
def test_a_detach_that_nothing_says_is_meant_or_that_is_not_all_is_a_finding(name: str, examined) -> None:
    (finding,) = examined(name).findings
    assert finding.where.module == "part"
    assert is_marked(finding.where.file, finding.where.line)
    assert ("nothing in its source says so" in finding.message) == (name == "in_chunks")


def test_numbers_that_differ_are_printed_differently() -> None:
    assert distinct_texts(-12.71, -12.74) == ("-12.71", "-12.74")
    assert distinct_texts(1.0, 2.0) == ("1", "2")
    assert distinct_texts(0.1, 0.1) == ("0.1", "0.1")
    assert distinct_texts(1.0, 1.0 + 2**-52) == ("1.0", "1.0000000000000002")
