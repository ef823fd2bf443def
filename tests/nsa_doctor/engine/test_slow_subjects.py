"""A subject whose calls take long: the most telling checks come first, on short sequences, and all ends in time."""

import pytest

from nsa_doctor.core import pace, registry
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Decision, Report, Verdict
from nsa_doctor.core.registry import Entry
from nsa_doctor.engine.run import RunRequest, run
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
    assert report.decision is Decision.UNKNOWN
    assert "NAN104" in {result.code for result in report.results if result.reason.startswith("left out: calls of 0.0")}
    assert any("examined up to S=16, where a call takes 0.0" in note for note in report.notes)


def test_the_finding_of_a_slow_subject_has_its_line() -> None:
    report = ran("waiting:sees_the_future", registry.select(("FWD201", "FWD202", "FWD206", "NAN101"), (), "quick"))
    assert [finding.code for finding in report.findings] == ["FWD201"]
    assert is_marked(report.findings[0].where.file, report.findings[0].where.line)


def test_telling_checks_are_part_of_the_shortest_profile() -> None:
    entries = registry.entries()
    telling = {code for code, entry in entries.items() if entry.telling}
    assert telling == {*TELLING, "DEC101"}
    assert {entries[code].profile for code in telling} == {"smoke"}
