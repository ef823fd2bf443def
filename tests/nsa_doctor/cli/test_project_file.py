"""nsa-doctor.toml: what it names is examined from its folder and below, and what is wrong with it is one sentence."""

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.cli.project_file import FILE, find_project_file
from nsa_doctor.core.errors import UsageError
from nsa_doctor.engine import run as engine
from tests.nsa_doctor.conftest import environment

MODULE = """
from torch import nn


class Attention(nn.Linear):
    def __init__(self):
        super().__init__(16, 16)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()  # nothing above it is read
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests of `run`, which examines nothing."""
    requests: list[Any] = []

    def refuse(request: Any, _listener: Any) -> None:
        requests.append(request.examination_request)
        raise UsageError("nothing is examined here")

    monkeypatch.setattr(engine, "run", refuse)
    return requests


def test_run_takes_its_options_from_the_file(
    project: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (project / FILE).write_text(
        'subject = "mine:make"\nprofile = "smoke"\nseed = 3\ntimeout = 5\ncompile-timeout = 7\n'
    )
    serve(["run", "--seed", "4"])
    (request,) = asked
    assert (request.spec, request.profile, request.seed) == ("mine:make", "smoke", 4)
    assert (request.timeout, request.compile_timeout) == (5, 7)
    assert "nsa-doctor.toml says subject mine:make, profile smoke, timeout 5" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--subject", "other:make"], ["--config", "m7c_125m_fast_log"]], ids=" ".join)
def test_a_command_line_that_names_a_subject_takes_nothing_from_the_file(
    project: Path, asked: list[Any], words: list[str]
) -> None:
    (project / FILE).write_text('subject = "mine:make"\nprofile = "smoke"\n')
    serve(["run", *words])
    (request,) = asked
    assert (request.spec != "mine:make", request.profile) == (True, "quick")


def test_the_file_next_above_counts_and_pyproject_has_a_table_of_it(project: Path, asked: list[Any]) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.nsa-doctor]\nsubject = "outer:make"\n')
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    (project / "a" / "pyproject.toml").write_text("[tool.ruff]\n")
    os.chdir(inner)
    serve(["run"])
    (inner / FILE).write_text('subject = "inner:make"\n')
    serve(["run"])
    assert [request.spec for request in asked] == ["outer:make", "inner:make"]


@pytest.mark.parametrize(
    ("said", "from_below"),
    [("hf:config.json", "hf:../config.json"), ("hf:.", "hf:.."), ("hf:llama", "hf:llama"), ("hf:a:B", "hf:a:B")],
)
def test_a_configuration_of_transformers_is_found_from_a_folder_below(
    project: Path, monkeypatch: pytest.MonkeyPatch, said: str, from_below: str
) -> None:
    (project / "config.json").write_text("{}")
    (project / "below").mkdir()
    (project / FILE).write_text(f'subject = "{said}"\n')
    for folder, subject in ((project, said), (project / "below", from_below)):
        monkeypatch.chdir(folder)
        found = find_project_file(folder)
        assert found is not None
        assert found.options["subject"] == subject


def test_nothing_above_the_repository_or_in_a_folder_that_anybody_writes_to_is_read(project: Path) -> None:
    (project / FILE).write_text('subject = "mine:make"\n')
    (project / "open" / "mine").mkdir(parents=True)
    (project / "repository" / ".git").mkdir(parents=True)
    (project / "open" / FILE).write_text("broken")
    (project / "open").chmod(0o777)
    assert find_project_file(project / "repository") is None
    found = find_project_file(project / "open" / "mine")
    assert found is not None
    assert found.path == project / FILE


def test_what_a_file_names_is_examined_from_a_folder_below_it(
    project: Path, doctor: Callable[..., CompletedProcess[str]]
) -> None:
    (project / "src" / "my_pkg_of_files").mkdir(parents=True)
    (project / "src" / "my_pkg_of_files" / "attn.py").write_text(MODULE)
    (project / FILE).write_text('subject = "my_pkg_of_files.attn:Attention"\npath = ["src"]\nselect = "FWD102"\n')
    (project / "below").mkdir()
    answer = doctor("run", "--profile", "smoke", cwd=project / "below", env=environment())
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "my_pkg_of_files.attn:Attention" in answer.stdout


WRONG = {
    "empty": ("", "nsa-doctor.toml: is empty; `nsa-doctor init --overwrite` writes one"),
    "truncated": ('subject = "mine:ma', "is not TOML: Unterminated string"),
    "cut in a table": ("[subj", "is not TOML: Expected ']'"),
    "type": ("subject = 3\n", "subject must be a valid string, got 3 (int)"),
    "type of a list": ('path = "src"\n', "path must be a list, got 'src' (str)"),
    "unknown": ('subjct = "a:b"\n', "subjct is unknown (value 'a:b' (str)): did you mean subject"),
    "unknown table": ("[subject]\nname = 1\n", "subject must be a valid string"),
    "value": ('profile = "quik"\n', "profile must be 'smoke', 'quick' or 'full', got 'quik' (str)"),
    "number": ("timeout = 0\n", "timeout must be greater than 0, got 0 (int)"),
    "not a number": ("timeout = nan\n", "timeout must be a finite number"),
    "negative": ("seed = -1\n", "seed must be greater than or equal to 0"),
    "no folder": ('path = ["nowhere"]\n', "path names 'nowhere', and there is no such folder beside it"),
    "escapes": ('"\\u001b[31mred" = 1\n', r"'\x1b[31mred' is unknown"),
    "twice": ('subject = "a:b"\nsubject = "c:d"\n', "is not TOML: Cannot overwrite a value"),
    "deep": (f"a = {'[' * 20_000}", "is nested too deeply"),
    "digits": (f"seed = {'9' * 9999}\n", "is not TOML"),
    "large": ("#" * (1 << 20) + "\n", "is larger than 1 MB"),
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_a_file_that_is_wrong_is_one_sentence_and_exit_2(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    (project / FILE).write_text(text)
    assert serve(["run"]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("nsa-doctor: nsa-doctor.toml: ")
    assert captured.err.count("\n") == 1


def test_what_is_no_file_of_text_is_one_sentence(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / FILE
    for make, sentence in (
        (path.mkdir, "is a folder, and must be a file"),
        (lambda: os.mkfifo(path), "is no file"),
        (lambda: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (lambda: path.write_bytes(b"subject = \xff"), "is no text in UTF-8: byte 10 is none"),
    ):
        make()
        assert serve(["run"]) == 2
        assert sentence in capsys.readouterr().err
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_pyproject_of_others_may_be_broken_and_ours_may_not(
    project: Path, capsys: pytest.CaptureFixture[str], asked: list[Any]
) -> None:
    pyproject = project / "pyproject.toml"
    pyproject.write_text("[project\n")
    serve(["run"])
    assert len(asked) == 1
    capsys.readouterr()
    for text, sentence in (
        ("[tool.nsa-doctor\n", "is not TOML"),
        ("[tool]\nnsa-doctor = 1\n", "tool.nsa-doctor must be a table"),
        ("[tool.nsa-doctor]\npolicies = 1\n", "policies is unknown (value 1 (int)): did you mean policy"),
    ):
        pyproject.write_text(text)
        assert serve(["run"]) == 2
        assert sentence in capsys.readouterr().err
    assert len(asked) == 1


def test_commands_that_examine_no_module_do_not_read_it(project: Path) -> None:
    (project / FILE).write_text("broken")
    assert serve(["list"]) == 0
