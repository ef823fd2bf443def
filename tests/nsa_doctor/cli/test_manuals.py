"""`list` and `explain` fit the terminal that a person reads them in, and are one line a text for a program."""

import sys

import pytest

from nsa_doctor.cli.commands import manuals
from nsa_doctor.cli.main import serve
from nsa_doctor.core import registry

WORDS = [["list"], ["explain", "FWD201", "GRD101"]]


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert serve(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_terminal_gets_lines_that_fit_it(
    words: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = said(words, capsys)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(manuals, "is_terminal", lambda stream: stream is sys.stdout)
    fitted = said(words, capsys)
    text, _, _ = fitted.partition("Example:")
    assert max(map(len, text.splitlines())) <= columns < max(map(len, plain.splitlines()))
    assert fitted.split() == plain.split()


def test_what_goes_on_stands_below_its_beginning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(manuals, "is_terminal", lambda _stream: True)
    _, detects, matters, *_ = said(["explain", "FWD201"], capsys).split("\n\n")
    for label, part in (("Detects: ", detects), ("Matters: ", matters)):
        first, *further = part.splitlines()
        assert first.startswith(label)
        assert further
        assert {len(line) - len(line.lstrip()) for line in further} == {len(label)}


def test_a_program_gets_each_text_as_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(["list"], capsys).splitlines()
    assert [line.strip() for line in lines[1::2]] == [each.detects for each in registry.manuals().values()]
