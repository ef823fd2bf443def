"""A gradient lost beyond many tokens is found in a quick examination too, and what only looks is passed over."""

from dataclasses import replace

import pytest

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch):
    """`examined("detached")` is the result of GRD101 on that module of `faulty.distant`."""
    monkeypatch.syspath_prepend(HERE)

    def examine(name: str, **options) -> Result:
        subject = load_subject(SubjectRequest(spec=f"faulty.distant:{name}", lengths=(16,)))
        return run_check(registry.load("GRD101"), replace(subject, **options))

    return examine


@pytest.mark.parametrize(
    ("name", "length"), [("detached", 521), ("without_gradients", 521), ("detached_beyond_1024", 1033)]
)
def test_a_gradient_lost_far_away_is_found_little_beyond_where_it_is_lost(name: str, length: int, examined) -> None:
    (finding,) = examined(name).findings
    assert finding.evidence["length"] == length
    assert finding.where.module == "part"
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("name", ["summary", "watched", "stabilised"])
def test_what_begins_far_away_and_loses_nothing_passes(name: str, examined) -> None:
    assert examined(name).verdict is Verdict.PASS


@pytest.mark.parametrize("longest", [3, 130, 600])
def test_no_more_tokens_are_tried_than_the_subject_takes(longest: int, examined) -> None:
    assert (examined("detached", max_length=longest).verdict is Verdict.FAIL) == (longest == 600)
