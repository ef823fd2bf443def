"""Every file has the shape CONTRIBUTING.md asks for, and any that had not would be found."""

from pathlib import Path

import pytest

from tests.shape import broken_shapes

ROOT = Path(__file__).parents[1]


def test_every_file_has_the_shape() -> None:
    assert broken_shapes(ROOT) == []


def lines(number: int) -> str:
    return "x = 1\n" * number


def function(number: int) -> str:
    return "def f():\n" + "    x = 1\n" * (number - 1)


FAULTY = {
    "long-file": ("nsa/a.py", lines(401), "1: 401 lines, at most 400"),
    "long-test": ("tests/nsa/test_a.py", lines(401), "1: 401 lines, at most 400"),
    "long-check": ("nsa_doctor/checks/nan/nan101_a.py", lines(101), "1: 101 lines, at most 100"),
    "long-kernel-file": ("nsa/ops/select/triton.py", lines(601), "1: 601 lines, at most 600"),
    "long-function": ("nsa/a.py", "\n" + function(61), "2: f has 61 lines, at most 60"),
    "long-kernel": ("nsa/ops/select/triton.py", function(121), "1: f has 121 lines, at most 120"),
    "name": ("nsa_doctor/utils.py", "", "1: a file is named for its content"),
    "bare-except": (
        "nsa/a.py",
        "try:\n    x\nexcept:\n    pass\n",
        "3: swallows every exception; nsa_doctor/core/errors.py alone may",
    ),
    "except-exception": (
        "nsa_doctor/probes/runner.py",
        "try:\n    x\nexcept (OSError, Exception):\n    pass\n",
        "3: swallows every exception; nsa_doctor/core/errors.py alone may",
    ),
    "citation": (
        "nsa/a.py",
        'x = 1\n"""As PLAN\x2emd has it."""\n',
        "2: cites PLAN\x2emd, which is not in the repository",
    ),
    "nan-to-num": ("nsa/a.py", "y = x.nan_to_num(0)\n", "1: nan_to_num; make no NaN instead"),
    "future": (
        "nsa/a.py",
        "from __future__ import annotations\n",
        "1: imports from __future__, which blinds the shape checks",
    ),
}
HEALTHY = {
    "at-the-caps": ("nsa/a.py", function(60) + lines(340)),
    "citation": ("nsa/a.py", '"""As CONTRIBUTING.md has it."""\n'),
    "check": ("nsa_doctor/checks/nan/nan101_a.py", lines(100)),
    "kernel": ("nsa/ops/select/triton.py", function(120) + lines(480)),
    "runner": ("nsa_doctor/core/errors.py", "try:\n    x\nexcept Exception:\n    pass\n"),
    "raised-again": ("nsa/a.py", "try:\n    x\nexcept BaseException:\n    y\n    raise\n"),
    "named-exceptions": ("nsa/a.py", "try:\n    x\nexcept (OSError, ValueError):\n    pass\n"),
    "nan-to-num-in-a-test": ("tests/test_a.py", "y = x.nan_to_num(0)\n"),
}


@pytest.mark.parametrize(("file", "text", "breach"), FAULTY.values(), ids=FAULTY.keys())
def test_a_breach_is_found(file: str, text: str, breach: str, tmp_path: Path) -> None:
    write(tmp_path, file, text)
    assert broken_shapes(tmp_path) == [f"{file}:{breach}"]


@pytest.mark.parametrize(("file", "text"), HEALTHY.values(), ids=HEALTHY.keys())
def test_a_good_file_is_not_accused(file: str, text: str, tmp_path: Path) -> None:
    write(tmp_path, file, text)
    assert broken_shapes(tmp_path) == []


def write(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text(text, encoding="utf-8")
