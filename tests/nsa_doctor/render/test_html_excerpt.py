"""Source around a finding's place: shown when it can still be what the finding is about, and read with care."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nsa_doctor.core.finding import Finding, Report, Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.render.excerpt import Sources
from nsa_doctor.render.html import render
from tests.nsa_doctor.render.page_parser import Element, read_page
from tests.nsa_doctor.render.pages import BARE

SOURCE = """\
import torch


class Attention:
    def forward(self, x):
        first = x
        second = first / x.sum()  # <b>here</b>
        return second

    def select(self, x):
        return x
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "attention.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


def shown(place: Place, repository: str = "") -> list[tuple[int, int, str, bool]]:
    return [(line.number, line.indent, line.text, line.is_named) for line in Sources(repository).excerpt(place)]


def report_of(place: Place, repository: str = "") -> Report:
    found = Finding(code="NAN101", message="not finite", where=place)
    result = Result(code="NAN101", name="output-not-finite", verdict=Verdict.FAIL, findings=(found,))
    return replace(BARE, results=(result,), environment={"repository": repository})


def source_of(page: str) -> list[Element]:
    return list(read_page(page).one("main").all("div", "source"))


def test_the_lines_of_the_function_around_a_place_are_shown(file: Path) -> None:
    assert shown(Place(file=str(file), line=7, function="forward")) == [
        (5, 0, "def forward(self, x):", False),
        (6, 4, "first = x", False),
        (7, 4, "second = first / x.sum()  # <b>here</b>", True),
        (8, 4, "return second", False),
    ]


def test_the_named_line_is_marked_and_source_is_no_markup(file: Path) -> None:
    (source,) = source_of(render(report_of(Place(file=str(file), line=7, function="forward"))))
    named = source.one("div", "named")
    assert named.text == "7▶second = first / x.sum()  # <b>here</b>"
    assert not list(source.all("b"))


def test_a_file_named_from_its_repository_is_found(file: Path) -> None:
    place = Place(file="attention.py", line=7, function="forward")
    assert shown(place, str(file.parent))
    assert source_of(render(report_of(place, str(file.parent))))


def test_excerpts_can_be_left_out(file: Path) -> None:
    assert not source_of(render(report_of(Place(file=str(file), line=7, function="forward")), excerpts=False))


@pytest.mark.parametrize(
    ("line", "function"),
    [(7, "select"), (10, "forward"), (7, "gone"), (999, "forward"), (999, "<module>"), (0, "forward"), (-1, "forward")],
)
def test_a_line_that_is_no_longer_in_its_function_is_not_shown(file: Path, line: int, function: str) -> None:
    assert shown(Place(file=str(file), line=line, function=function)) == []


@pytest.mark.parametrize("function", ["", "<module>", "<lambda>", "<listcomp>"])
def test_a_line_of_no_function_is_shown_as_it_stands(file: Path, function: str) -> None:
    assert [number for number, *_ in shown(Place(file=str(file), line=2, function=function))] == [1, 2, 3, 4, 5, 6]


def test_a_qualified_name_is_that_of_its_last_part(file: Path) -> None:
    assert shown(Place(file=str(file), line=11, function="Attention.select"))[-1] == (11, 4, "return x", True)


def test_long_lines_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text(f"x = '{'y' * 9999}'\n", encoding="utf-8")
    assert len(shown(Place(file=str(path), line=1))[0][2]) == 240


def test_a_warning_of_the_source_is_nobodys_here(tmp_path: Path) -> None:
    path = tmp_path / "warns.py"
    path.write_text("x = '\\d'\nassert (x, 'always')\n", encoding="utf-8")
    assert shown(Place(file=str(path), line=2))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("key.pem", SOURCE.encode()),
        ("nothing.py", b""),
        ("binary.py", b"\x00\xff\xfe" * 9),
        ("broken.py", b"def f(:\n" * 9),
        ("deep.py", b"x = " + b"(" * 50_000 + b"\n" * 9),
        ("deeper.py", b"x = " + b"-" * 200_000 + b"1\n" * 9),
        ("large.py", b"x = 1\n" * 200_000),
        ("null.py", b"x = 1\n\x00\n"),
    ],
)
def test_what_is_not_moderate_python_is_not_shown(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert shown(Place(file=str(tmp_path / name), line=2)) == []


@pytest.mark.parametrize(
    "name", ["/dev/zero.py", "/proc/self/mem", "<string>", "no\x00where.py", "x" * 9999 + ".py", "/"]
)
def test_what_is_no_file_is_not_shown(name: str) -> None:
    assert shown(Place(file=name, line=1)) == []


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert shown(Place(file=str(tmp_path / "pipe.py"), line=1)) == []


def test_a_device_behind_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    for name in ("zero.py", "folder.py", "loop.py"):
        assert shown(Place(file=str(tmp_path / name), line=1)) == []


def test_a_file_is_read_once(file: Path) -> None:
    sources, place = Sources(""), Place(file=str(file), line=7, function="forward")
    before = sources.excerpt(place)
    file.unlink()
    assert sources.excerpt(place) == before != ()
