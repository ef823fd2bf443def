"""`nsa-doctor data`: what a source does to its process is a finding, and what cannot be asked one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from nsa_doctor.artifacts.data.examine import data
from nsa_doctor.artifacts.data.request import data_request
from nsa_doctor.cli.main import serve
from nsa_doctor.core.finding import Decision, Verdict
from tests.nsa_doctor.conftest import HERE


def mark(function: str) -> int:
    lines = (HERE / "faulty" / "feeds.py").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"def {function}("))
    return next(number for number, line in enumerate(lines[start:], start + 1) if line.endswith("# here"))


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("kills", "died by signal 11 (SIGSEGV) at"),
        pytest.param("leaves", "was ended by it, with exit code 0", marks=pytest.mark.full),
    ],
)
def test_a_source_that_ends_its_process_is_a_finding(name: str, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    report = data(data_request(config=None, subject=f"faulty.feeds:{name}"))
    assert report.decision is Decision.NO_GO
    (found,) = report.findings
    assert found.code == "DAT104"
    assert f"the process that opens the data {ending}" in found.message
    if " at" in ending:
        assert (Path(found.where.file).name, found.where.line) == ("feeds.py", mark(name))
    assert {result.verdict for result in report.results if result.code != "DAT104"} == {Verdict.SKIP}


@pytest.mark.full
def test_a_source_that_never_lets_go_of_the_interpreter_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setattr("nsa_doctor.artifacts.data.examine._SPARE_SECONDS", 3.0)
    (found,) = data(data_request(config=None, subject="faulty.feeds:holds_the_interpreter", timeout=2.0)).findings
    assert "gives no sign of life any more: it is at" in found.message
    assert (found.code, found.where.function, found.where.line) == (
        "DAT104",
        "holds_the_interpreter",
        mark("holds_the_interpreter"),
    )


def report_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = serve(["data", *words, "--format", "json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


def test_the_command_passes_a_source_that_is_well(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    code, report = report_of(capsys, "--subject", "faulty.feeds:good", "--seq-len", "16", "--vocab-size", "50")
    assert (code, report["decision"], report["subject"]["name"]) == (0, "GO", "faulty.feeds:good")


def test_the_command_says_what_is_wrong_and_how_to_see_it_again(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    words = ("--subject", "faulty.feeds:good", "--seq-len", "15", "--vocab-size", "50")
    code, report = report_of(capsys, *words)
    assert (code, report["decision"]) == (1, "NO-GO")
    (found,) = [found for result in report["results"] for found in result["findings"]]
    assert (found["code"], found["repro"]) == ("DAT102", f"nsa-doctor data {' '.join(words)}")


def test_the_command_looks_at_files_through_a_configuration(capsys: Any, tmp_path: Path) -> None:
    text = tmp_path / "two words.txt"
    text.write_text("\n\n".join(f"paragraph {index} of a text, {index * index % 97}" for index in range(900)))
    words = ("--config", str(HERE / "small.yaml"), "--dataset", f"text:{text}")
    code, report = report_of(capsys, *words, "--batches", "4")
    assert code == 0
    assert set(report["subject"]["identity"]) >= {"configuration_hash", "data_hash"}


@pytest.mark.full
def test_a_file_that_is_not_there_is_a_finding(capsys: Any, tmp_path: Path) -> None:
    code, report = report_of(
        capsys, "--config", str(HERE / "small.yaml"), "--dataset", f"text:{tmp_path / 'none.txt'}", "--batches", "4"
    )
    assert code == 1
    assert "there is no such file" in json.dumps(report)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give --config FILE, or --subject package.module:factory"),
        (["--subject", "x"], "--subject must be package.module:factory, got 'x'"),
        (["--subject", "no_such_thing:x"], "subject no_such_thing:x cannot be imported: ModuleNotFoundError"),
        pytest.param(["--config", "none.yaml"], "--config none.yaml: no such file", marks=pytest.mark.full),
        (["--config", "train_showcase", "--batches", "0"], "--batches must be from 1 to 100000, got 0"),
        (["--config", "train_showcase", "--timeout", "nan"], "--timeout must be a number of seconds above 0, got nan"),
        (["--config", "train_showcase", "--seq-len", "3"], "--seq-len is for a --subject"),
        (["--subject", "a:b", "--dataset", "text:x"], "--dataset is for the loader of nsa"),
        (["--subject", "a:b", "--set", "train.steps=1"], "--set changes a --config, and none is given"),
        (["--subject", "a:b", "--targets", "other"], "--targets cannot be 'other': allowed are next, same"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(words: list[str], sentence: str, capsys: Any) -> None:
    assert serve(["data", *words]) == 2
    assert sentence in capsys.readouterr().err
