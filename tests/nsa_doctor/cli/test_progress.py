"""Where progress is shown: one line that is replaced in a notebook, lines on standard error elsewhere."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nsa_doctor.cli.progress import of_steps


class Line:
    """What IPython gives for a display that has an id."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(data["text/plain"])


@pytest.fixture
def line() -> Line:
    return Line()


def ipython(monkeypatch: pytest.MonkeyPatch, line: Line, shell: Any) -> None:
    """IPython as this process has imported it, in which `shell` runs."""

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Line:
        assert display_id
        line.update(data, raw)
        return line

    package, page = ModuleType("IPython"), ModuleType("IPython.display")
    package.__dict__.update(get_ipython=lambda: shell, display=page)
    page.__dict__.update(display=display)
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", page)


def two_steps(quiet: bool) -> None:
    with of_steps(quiet) as listener:
        listener("FWD101 PASS", 1, 2)
        listener("FWD201 FAIL", 2, 2)


def test_a_notebook_has_one_line_that_is_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: Line
) -> None:
    ipython(monkeypatch, line, SimpleNamespace(kernel=object()))
    two_steps(quiet=False)
    assert line.shown == ["starting", "1/2 FWD101 PASS", "2/2 FWD201 FAIL"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["no shell", "a terminal's shell"])
def test_without_a_kernel_lines_go_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: Line, shell: Any
) -> None:
    ipython(monkeypatch, line, shell)
    two_steps(quiet=False)
    assert capsys.readouterr().err == "1/2 FWD101 PASS\n2/2 FWD201 FAIL\n"
    assert line.shown == []


def test_quiet_shows_nothing_in_a_notebook(monkeypatch: pytest.MonkeyPatch, line: Line) -> None:
    ipython(monkeypatch, line, SimpleNamespace(kernel=object()))
    two_steps(quiet=True)
    assert line.shown == []
