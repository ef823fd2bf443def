"""ENV103: a flag that sources read has to be followed, and one that none reads is nobody's."""

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked


@pytest.fixture(autouse=True)
def faulty(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(HERE)
    from faulty import prefills

    return prefills


@pytest.mark.parametrize(("name", "message"), [("opposes", "does the opposite"), ("ignores", "has no effect")])
def test_a_flag_that_is_not_followed_is_reported_where_it_is_read(name, message, faulty):
    result = run_check(registry.load("ENV103"), getattr(faulty, name)())
    (finding,) = result.findings
    assert message in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize(("name", "verdict"), [("obeys", Verdict.PASS), ("knows_no_flag", Verdict.SKIP)])
def test_one_that_is_followed_or_unknown_is_no_finding(name, verdict, faulty):
    result = run_check(registry.load("ENV103"), getattr(faulty, name)())
    assert (result.verdict, result.findings) == (verdict, ())
    assert result.is_required == (verdict is Verdict.PASS)
