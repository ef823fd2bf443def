"""An exception that is caught and changes what comes out is found; one that asks or chooses is left alone."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked

Examine = Callable[[str], Result]


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch) -> Examine:
    monkeypatch.syspath_prepend(HERE)

    def run(name: str) -> Result:
        subject = load_subject(SubjectRequest(spec=f"faulty.swallowing:{name}", lengths=(16,)))
        return run_check(registry.load("FWD308"), replace(subject, profile="quick"))

    return run


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other_scale", "its output is not that at S=16"),
        ("token_by_token", "operations, and"),
        ("misspelt", "TypeError"),
        ("unfitting", "in every call: nobody means to raise it"),
    ],
)
def test_what_hides_behind_a_clause_is_found_at_the_clause(name: str, words: str, examine: Examine) -> None:
    (finding,) = examine(name).findings
    assert words in finding.message
    assert "is caught by `except Exception`" in finding.message
    assert (finding.where.module, is_marked(finding.where.file, finding.where.line)) == ("part", True)


@pytest.mark.parametrize("name", ["equal", "of_all_tokens"])
def test_a_way_round_that_gives_the_same_is_a_note(name: str, examine: Examine) -> None:
    result = examine(name)
    assert result.verdict is Verdict.PASS
    (note,) = result.notes
    assert "NotImplementedError (the length must be a multiple of 16)" in note
    assert "in every call" not in note


def test_warnings_and_counters_that_tell_of_another_way_are_notes(examine: Examine) -> None:
    result = examine("counts")
    assert result.verdict is Verdict.PASS
    assert any("it warns of another path: falling back to plain attention" in note for note in result.notes)
    assert any("the counter faulty.swallowing.COUNTS.fallbacks rises by" in note for note in result.notes)


def test_asking_by_a_call_while_it_is_built_is_a_note(examine: Examine) -> None:
    result = examine("made_of_any")
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_asking_by_an_exception_is_not_even_noted(examine: Examine) -> None:
    result = examine("asks")
    assert (result.verdict, result.notes) == (Verdict.PASS, ())
