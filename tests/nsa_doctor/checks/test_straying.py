"""FWD304 names the operation from which on low precision is as far off as the output."""

import pytest

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked


def _examined(name: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.syspath_prepend(HERE)
    subject = load_subject(SubjectRequest(spec=f"faulty.straying:{name}", input="embeddings", width=32, lengths=(16,)))
    return run_check(registry.load("FWD304"), subject)


@pytest.mark.parametrize(("name", "operation"), [("variance", "sub"), ("scores", "to_copy")])
def test_the_operation_at_which_it_strays_is_named(name: str, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = _examined(name, monkeypatch).findings
    assert finding.message.endswith(f"it strays in {operation}")
    assert finding.where.module == "part"
    assert is_marked(finding.where.file, finding.where.line)


def test_the_same_by_squares_of_differences_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _examined("centred", monkeypatch).verdict is Verdict.PASS
