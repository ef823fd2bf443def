"""A subject whose calls take long: the most telling checks come first, on short sequences, and all ends in time."""

from dataclasses import replace

import pytest

from nsa_doctor.adapters import length_limits
from nsa_doctor.adapters.load import load_subject
from nsa_doctor.checks._shared.future import plans
from nsa_doctor.core import pace, registry
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Decision, Report, Verdict
from nsa_doctor.core.registry import Entry
from nsa_doctor.core.usual_costs import cost_of_a_finding
from nsa_doctor.engine.run import RunRequest, _most_telling, run
from nsa_doctor.probes.attention.decoding import lengths_to_decode
from nsa_doctor.subject.request import SubjectRequest
from tests.nsa_doctor.conftest import HERE, is_marked

SECONDS = 25.0
SLOW_CALL, WANTED_CALL = 0.05, 0.025  # a tenth of what is slow for a user, as the subjects are ten times as fast
TELLING = ("FWD201", "FWD203", "FWD206", "GRD101")


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setitem(pace._SECONDS, "quick", SECONDS)  # type: ignore[arg-type]
    monkeypatch.setattr(pace, "_SLOW_CALL", SLOW_CALL)
    monkeypatch.setattr(pace, "_WANTED_CALL", WANTED_CALL)


def ran(spec: str, checks: list[Entry]) -> Report:
    request = ExaminationRequest(spec=f"faulty.{spec}", explore=True, lengths=(64, 16), threads=1, timeout=30.0)
    return run(RunRequest(examination_request=request, checks=tuple(checks)))


def test_a_slow_healthy_subject_is_no_hang_and_what_was_left_out_is_said() -> None:
    report = ran("waiting:healthy", registry.select(("FWD1", "FWD20", "GRD101", "NAN"), (), "quick"))
    results = {result.code: result for result in report.results}
    assert report.findings == ()
    assert [results[code].verdict for code in ("NAN101", "FWD101")] == [Verdict.PASS] * 2
    assert all(results[code].verdict is Verdict.PASS for code in TELLING)
    assert results["NAN104"].verdict is Verdict.PASS
    assert report.decision is Decision.GO
    assert any("examined up to S=16, where a call takes 0.0" in note for note in report.notes)


def test_where_short_calls_are_slow_too_unusual_values_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_PASSES_OF_VALUES", 1e6)
    report = ran("waiting:healthy", registry.select(("FWD1", "NAN"), (), "quick"))
    assert report.decision is Decision.UNKNOWN
    assert "NAN104" in {result.code for result in report.results if result.reason.startswith("left out: calls of 0.0")}


def test_the_finding_of_a_slow_subject_has_its_line() -> None:
    report = ran("waiting:sees_the_future", registry.select(("FWD201", "FWD202", "FWD206", "NAN101"), (), "quick"))
    assert [finding.code for finding in report.findings] == ["FWD201"]
    assert is_marked(report.findings[0].where.file, report.findings[0].where.line)


def test_where_sixteen_tokens_take_far_too_long_four_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_limits, "_MOST_SECONDS", SLOW_CALL)
    monkeypatch.setattr(length_limits, "_FAR_TOO_LONG", 0.02)
    monkeypatch.setattr(pace, "_WANTED_CALL", 0.004)
    subject = load_subject(SubjectRequest(spec="faulty.waiting:healthy", explore=True))
    assert [length for length, _ in subject.call_seconds][:3] == [4, 16, 32]
    assert subject.max_length == 4
    assert subject.is_slow


def test_a_slow_subject_is_given_the_fewest_calls_that_can_tell() -> None:
    subject = load_subject(SubjectRequest(spec="faulty.waiting:healthy"))
    slow = replace(subject, call_seconds=((16, 2.0),), max_length=16)
    assert (subject.is_slow, slow.is_slow) == (False, True)
    assert [(plan.length, plan.num_cuts, plan.mode) for plan in plans(slow)] == [(16, 2, "eval")]
    assert len(plans(subject)) > 3
    assert lengths_to_decode(slow)[0] < lengths_to_decode(subject)[0]


def test_an_examination_that_takes_too_long_begins_no_further_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pace._SECONDS_OF_ALL, "quick", 0.0)  # type: ignore[arg-type]
    for name in ("_SLOW_CALL", "_SHORT_CALL_OF_A_LOOP"):
        monkeypatch.setattr(pace, name, 60.0)
    report = ran("waiting:healthy", registry.select(("FWD203", "NAN101"), (), "quick"))
    results = {result.code: result for result in report.results}
    assert results["NAN101"].verdict is Verdict.PASS
    assert (results["FWD203"].verdict, report.decision) == (Verdict.SKIP, Decision.UNKNOWN)
    assert results["FWD203"].reason.startswith("left out: the 0 s of the profile quick were over")


def test_what_finds_most_for_its_time_comes_first() -> None:
    entries = registry.entries()
    first = sorted(entries.values(), key=_most_telling)
    assert {entry.manual.code for entry in first[:5]} == {*TELLING, "DEC101"}
    places = {entry.manual.code: place for place, entry in enumerate(first)}
    assert places["FWD226"] < places["GRD208"] < places["FWD211"]
    assert cost_of_a_finding("XYZ999") == cost_of_a_finding("XYZ998")


def test_telling_checks_are_part_of_the_shortest_profile() -> None:
    entries = registry.entries()
    telling = {code for code, entry in entries.items() if entry.telling}
    assert telling == {*TELLING, "DEC101"}
    assert {entries[code].profile for code in telling} == {"smoke"}
