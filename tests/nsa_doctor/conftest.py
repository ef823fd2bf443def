"""How a test asks the doctor: in this process for speed, or as a user would."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from nsa_doctor.__main__ import start
from nsa_doctor.adapters.load import load_subject
from nsa_doctor.adapters.nsa_layer import builtin_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Report
from nsa_doctor.isolation.forked import ForkedProcess
from nsa_doctor.isolation.start import Children
from nsa_doctor.probes.model.state import can_be_forked
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.render import json as as_json
from nsa_doctor.render.reading import parse_report
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest

HERE = Path(__file__).parents[1] / "gallery"
ROOT = HERE.parents[1]
_LONGEST = 110.0  # seconds: a test has 120
IMPORTED = (
    *("nsa_doctor.cli.main", "nsa_doctor.engine.run", "nsa_doctor.policy.go_no_go", "nsa_doctor.worker.handlers"),
    *(f"nsa_doctor.render.{name}" for name in ("bundle", "html", "junit", "markdown", "reading", "sarif", "terminal")),
    *("matplotlib.figure", "matplotlib.backends.backend_svg"),
)
REPORT = f'{{\n  "format": "{as_json.FORMAT}"'


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LocalMeasurer]:
    """`faulty("forward:log_of_zero")` is a supervisor for that module of the folder `faulty`."""
    monkeypatch.syspath_prepend(HERE)

    def measurer(name: str, lengths: tuple[int, ...] = (16,)) -> LocalMeasurer:
        return LocalMeasurer(load_subject(SubjectRequest(spec=f"faulty.{name}", lengths=lengths)))

    return measurer


@pytest.fixture(scope="session")
def small() -> Subject:
    """The built-in subject at a size that takes milliseconds."""
    return builtin_subject(str(HERE / "small.yaml"))


@pytest.fixture(autouse=True)
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are forks of this process, as a case's are: they need not import torch."""
    monkeypatch.setattr(Children, "are_forked", can_be_forked())


@pytest.fixture
def doctor() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`doctor("sweep", ...)` runs the command in the folder that holds `faulty`, with one thread and 80 columns.

    It does so in a fork of this process, where that may be; what is about the start of the program starts it itself.
    """

    def run(
        *words: str, cwd: Path = HERE, env: Mapping[str, str] | None = None, input: str = ""
    ) -> subprocess.CompletedProcess[str]:
        run_command = in_a_fork if can_be_forked() else in_an_interpreter
        done = run_command(words, cwd, env or environment(), input)
        if done.stdout.startswith(REPORT):
            parse_report(done.stdout)
        return done

    return run


def in_an_interpreter(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], text: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nsa_doctor", *words]
    return subprocess.run(command, cwd=cwd, env=env, input=text, capture_output=True, text=True, check=False)


@cache
def import_what_commands_import() -> None:
    """Once, and not in every fork: what commands import late, and reads of every check's file."""
    for name in IMPORTED:
        importlib.import_module(name)
    registry.manuals()


def in_a_fork(words: Sequence[str], cwd: Path, env: Mapping[str, str], text: str) -> subprocess.CompletedProcess[str]:
    import_what_commands_import()
    with TemporaryFile("w+") as given, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        given.write(text)
        given.seek(0)

        def call() -> None:
            os.dup2(given.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(env)
            sys.path.insert(0, "")
            sys.argv = ["nsa-doctor", *words]
            try:
                start()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()

        process = ForkedProcess(call, (given.fileno(), output.fileno()), errors.buffer)
        try:
            code = process.wait(_LONGEST)
        finally:
            process.send_signal(signal.SIGKILL)  # no signal, once it has ended
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, code, output.read(), errors.read())


@pytest.fixture(autouse=True)
def readable_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every report that a test writes is as its schema says, and comes back as it was."""
    write = as_json.render

    def written(report: Report) -> str:
        text = write(report)
        assert write(parse_report(text)) == text
        return text

    monkeypatch.setattr(as_json, "render", written)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}


def is_marked(file: str, line: int) -> bool:
    """Whether that line carries the mark of a bug."""
    return Path(file).read_text(encoding="utf-8").splitlines()[line - 1].endswith("# here")
