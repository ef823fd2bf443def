"""What two reports say together: new, fixed, still there, not looked at again, slower; in every form, inert."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.core.comparison import Outcome
from nsa_doctor.core.finding import Decision, Report, Verdict
from nsa_doctor.core.measurement import Measurement, Point
from nsa_doctor.policy.comparison import compare_reports
from nsa_doctor.render import json as as_json
from nsa_doctor.render.compared import FORMATS, render_comparison
from tests.nsa_doctor.render.page_parser import read_page
from tests.nsa_doctor.reports import FUTURE, HANG, HOSTILE, OVERWRITTEN, examined, filled, result

PASSED = result("FWD201", "future-changes-output", Verdict.PASS)
FAILED = result("FWD201", "future-changes-output", Verdict.FAIL, FUTURE)
OTHER = result("GRD401", "saved-tensor-overwritten", Verdict.FAIL, OVERWRITTEN)
SKIPPED = result("FWD201", "future-changes-output", Verdict.SKIP, reason="means nothing while another fails")
TIMED = {"forward": [0.1, 0.11, 0.12], "dense_forward": [0.1, 0.1, 0.1], "operations": 10, "waits": 0}


def report(*results: Any, **more: Any) -> Report:
    return replace(examined(), results=results, measurements=(), notes=(), **more)


def compared(old: Report, new: Report) -> Any:
    return compare_reports(old, new, "old.json", "new.json")


def test_a_finding_is_new_fixed_or_still_there() -> None:
    found = compared(report(FAILED, result("GRD401", "x", Verdict.PASS)), report(PASSED, OTHER))
    assert (found.fixed, found.appeared, found.still) == ((FUTURE,), (OVERWRITTEN,), ())
    assert found.outcome is Outcome.WORSE
    again = compared(report(FAILED), report(FAILED))
    assert (again.still, again.appeared, again.outcome) == ((FUTURE,), (), Outcome.NO_WORSE)


OUTCOMES = {
    "all is well": (report(PASSED), report(PASSED), Outcome.NO_WORSE),
    "as before": (report(FAILED), report(FAILED), Outcome.NO_WORSE),
    "mended": (report(FAILED), report(PASSED), Outcome.BETTER),
    "one of two mended": (report(FAILED, OTHER), report(PASSED, OTHER), Outcome.BETTER),
    "mended, and slower": (
        report(FAILED, throughput={"rows": [{"length": 64, **TIMED}]}),
        report(PASSED, throughput={"rows": [{"length": 64, **TIMED, "operations": 20}]}),
        Outcome.NO_WORSE,
    ),
    "one beyond those shown mended": (report(replace(FAILED, further=("0" * 16,))), report(FAILED), Outcome.BETTER),
    "broken": (report(PASSED), report(FAILED), Outcome.WORSE),
    "another one": (report(FAILED), report(FAILED, OTHER), Outcome.WORSE),
    "one beyond those shown": (report(FAILED), report(replace(FAILED, further=("0" * 16,))), Outcome.WORSE),
    "not looked at again": (report(FAILED, OTHER), report(OTHER), Outcome.UNKNOWN),
    "skipped": (report(FAILED), report(SKIPPED), Outcome.UNKNOWN),
    "passed, then skipped": (report(PASSED), report(SKIPPED), Outcome.UNKNOWN),
    "passed, then cut short": (report(PASSED), report(interrupted=True), Outcome.UNKNOWN),
    "of another subject": (report(PASSED), report(PASSED, subject={"name": "other:make"}), Outcome.UNKNOWN),
    "found by a check that is new": (report(PASSED), report(PASSED, OTHER), Outcome.WORSE),
}


@pytest.mark.parametrize(("old", "new", "outcome"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_it_is_no_worse_only_where_all_was_looked_at_again(old: Report, new: Report, outcome: Outcome) -> None:
    assert compared(old, new).outcome is outcome


def timed(**row: Any) -> Report:
    return report(PASSED, throughput={"rows": [{"length": 64, **TIMED, **row}]})


@pytest.mark.parametrize(
    ("row", "slower"),
    [
        ({}, []),
        ({"forward": [0.1, 0.3, 0.5]}, []),  # the fastest is as fast: a busy machine
        ({"forward": [0.3, 0.3, 0.4], "dense_forward": [0.3, 0.3, 0.3]}, []),  # so is what was timed beside it
        ({"forward": [0.3, 0.3, 0.4]}, ["forward pass at S=64"]),
        ({"forward": [0.05, 0.05, 0.05]}, []),
        ({"operations": 20}, ["operations at S=64"]),
        ({"waits": 1}, ["waits for the device at S=64"]),
        ({"forward": "none", "operations": None}, []),
    ],
)
def test_slower_is_what_is_so_beside_dense_attention_too(row: dict[str, Any], slower: list[str]) -> None:
    found = compared(timed(), timed(**row))
    assert [each.what for each in found.slower] == slower
    assert found.outcome is Outcome.NO_WORSE


def swept(*seconds: float) -> Report:
    points = [Measurement(point=Point(length=2**index), seconds=each) for index, each in enumerate(seconds)]
    return replace(report(PASSED), measurements=tuple(points))


def test_a_sweep_says_slower_of_a_mode_that_is_so_at_every_point() -> None:
    before = swept(0.1, 0.1, 0.2, 0.4)
    assert compared(before, swept(0.1, 0.9, 0.9, 0.9)).slower == ()
    found = compared(before, swept(0.2, 0.2, 0.4, 0.8))
    (slower,) = found.slower
    assert [note for note in found.notes if note.startswith("a sweep times each call once")]
    assert not compared(before, before).notes
    assert (slower.before, slower.after) == ("0.4 s", "0.8 s")


def test_conditions_that_differ_are_named() -> None:
    other = {**examined().environment, "torch": "2.20"}
    found = compared(report(PASSED), report(PASSED, environment=other))
    assert found.notes == ("torch 2.20, was 2.13.0+cpu: times are of different conditions",)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str]]:
    monkeypatch.chdir(tmp_path)

    def write(old: Report, new: Report) -> tuple[str, str]:
        for name, each in (("old.json", old), ("new.json", new)):
            (tmp_path / name).write_text(as_json.render(each), encoding="utf-8")
        return "old.json", "new.json"

    return write


@pytest.mark.parametrize(("old", "new", "outcome"), list(OUTCOMES.values())[:7:3])
def test_the_command_ends_with_the_outcome(
    files: Any, old: Report, new: Report, outcome: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(["compare", *files(old, new)]) == outcome.exit_code
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{outcome.value}: {new.decision.value}")


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_of_every_form_is_written(files: Any, form: str, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / f"out.{ {'terminal': 'txt'}.get(form, form) }"
    assert serve(["compare", *files(report(PASSED), report(FAILED, OTHER)), "--output", str(output)]) == 1
    text = output.read_text(encoding="utf-8")
    assert "FWD201" in text
    assert capsys.readouterr().out == ""
    if form == "json":
        record = json.loads(text)
        assert (record["outcome"], record["old"]["decision"]) == ("WORSE", Decision.GO.value)
        assert [each["fingerprint"] for each in record["appeared"]] == [FUTURE.fingerprint, OVERWRITTEN.fingerprint]


REFUSED: dict[str, tuple[Callable[[Path], Any], list[str], str]] = {
    "missing": (lambda path: path.unlink(), [], "old.json: there is no such file"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), [], "old.json: is a folder"),
    "empty": (lambda path: path.write_text(""), [], "old.json: is empty"),
    "cut": (lambda path: path.write_text(path.read_text()[:200]), [], "old.json: ends in the middle"),
    "no report": (lambda path: path.write_text("{}"), [], "old.json: is JSON, and no report"),
    "deep": (lambda path: path.write_text("[" * 99_999), [], "old.json: is nested too deeply"),
    "no text": (lambda path: path.write_bytes(b"\xff"), [], "old.json: is not JSON in UTF-8"),
    "by hand": (
        lambda path: path.write_text(path.read_text().replace('"decision": "GO"', '"decision": "NO-GO"')),
        [],
        "old.json: says NO-GO, and what it holds makes GO",
    ),
    "form": (lambda _path: None, ["--format", "sarif"], "--format cannot be 'sarif'"),
    "ending": (lambda _path: None, ["--output", "x.sarif"], "a comparison is written as terminal, json, md, html"),
    "over a report": (lambda _path: None, ["--output", "old.json"], "is a report that is compared, and would be lost"),
}


@pytest.mark.parametrize(("spoil", "words", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_compared_is_one_sentence_and_exit_2(
    files: Any,
    spoil: Callable[[Path], Any],
    words: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new = files(report(PASSED), report(PASSED))
    spoil(Path(old))
    assert serve(["compare", old, new, *words]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_of_a_report_has_an_effect_in_any_form(name: str) -> None:
    new = filled(report(FAILED, OTHER, result("HNG101", "x", Verdict.TIMEOUT, HANG)), lambda _: HOSTILE[name])
    found = compare_reports(report(PASSED), replace(new, throughput={}), HOSTILE[name][:60], "new.json")
    texts = {form: render_comparison(found, form) for form in FORMATS}
    assert not any(re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text) for text in texts.values())
    page = read_page(texts["html"])
    assert not [each.tag for each in page.all() if each.tag in ("script", "img", "iframe", "a", "form")]
    assert not re.search(r"(?<!\\)<script", re.sub(r"(?ms)^(`{3,}).*?^\1|`[^`]*`", "", texts["md"]))
    assert len(texts["md"]) < 65_536
    assert len(texts["terminal"]) < 100_000
